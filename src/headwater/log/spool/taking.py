"""What one read hands out: groups in order, cut to what was asked for."""

from __future__ import annotations

from headwater.core.errors import Refused
from headwater.core.limits import LOG_READ_RECORDS
from headwater.log.record.group import Group
from headwater.log.record.views import without_views


class Taking:
    """Gathers groups above an LSN until there are enough records or bytes."""

    def __init__(self, lsn: int, *, max_records: int | None, max_bytes: int) -> None:
        """Without `max_records` there are LOG_READ_RECORDS at most, and a lost range counts as one
        and is never cut: it may be of any length, and would be handed out for ever."""
        self._keeps_lost_whole = max_records is None
        self.max_records = LOG_READ_RECORDS if max_records is None else max_records
        if self.max_records < 1 or max_bytes < 1:
            raise Refused(
                f"max_records is {max_records} and max_bytes {max_bytes}: both are above 0"
            )
        self.lsn = lsn
        """How far it has come."""
        self.groups: list[Group] = []
        self._records_left = self.max_records
        self._bytes_left = max_bytes

    def add(self, group: Group) -> bool:
        """Take what fits of a group; False once there is enough."""
        part = group.after(self.lsn)
        if part is None:
            return True
        counts_as_one = self._keeps_lost_whole and part.lost is not None
        if not counts_as_one:
            part = part.between(part.first_lsn, part.first_lsn + self._records_left - 1)
            if part is None:
                return False
        whole, part = part, self._fitting(part)
        if part is None:
            return False
        self.groups.append(part)
        self.lsn = part.last_lsn
        self._records_left -= 1 if counts_as_one else len(part)
        self._bytes_left -= part.nbytes
        return part is whole and self._records_left > 0 and self._bytes_left > 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether another as large as the last one fits. What would be cut is left to the next
        read: it would have to be read, checked and decoded a second time for the rest of it."""
        return size_bytes <= self._bytes_left

    def _fitting(self, part: Group) -> Group | None:
        """As many records as there are bytes left for, and at least one if there are none yet."""
        if part.nbytes <= self._bytes_left or part.lost is not None:
            return part
        low, high = (0 if self.groups else 1), len(part)
        counted = without_views(part.records)
        while low < high:
            middle = (low + high + 1) // 2
            if counted.slice(0, middle).nbytes <= self._bytes_left:
                low = middle
            else:
                high = middle - 1
        return part.between(part.first_lsn, part.first_lsn + low - 1)
