"""Records made ready to be appended: encoded and summed, wherever there is time for it."""

from __future__ import annotations

import pyarrow as pa

from headwater.core.errors import Bug, Refused
from headwater.core.limits import LOG_GROUP_BYTES
from headwater.log.record.columns import check_columns
from headwater.log.record.hashing import is_compared
from headwater.log.spool.envelope import Body


class Draft:
    """The frames of one append, which need only their LSNs and their place. Good for one append."""

    def __init__(self, bodies: list[Body]) -> None:
        self._bodies: list[Body] | None = bodies

    def take(self) -> list[Body]:
        """The frames; they are filled in where they stand, so nobody else gets them."""
        bodies, self._bodies = self._bodies, None
        if bodies is None:
            raise Bug("a draft is appended once: make another")
        return bodies


def draft_of(records: pa.RecordBatch, *, group_bytes: int = LOG_GROUP_BYTES) -> Draft:
    """Frames of up to `group_bytes` of records each; a single record may have more."""
    if not records.num_rows:
        raise Refused("nothing to append: there are no records")
    check_columns(records.schema)
    for field in records.schema:
        if not is_compared(field.type):
            raise Refused(
                f"column {field.name!r} is {field.type}, which a log does not carry: "
                "cast it to a list, a string or a number, and decode what is a dictionary"
            )
    return Draft([Body.of_records(part) for part in _parts(records, group_bytes)])


def draft_of_lost(lsns: int, cause: str) -> Draft:
    """A range of LSNs whose records cannot be had any more: covered, and told as lost."""
    if lsns < 1:
        raise Refused(f"a lost range has at least one LSN, not {lsns}")
    # A cause often quotes what was wrong, which need not be text.
    readable = cause.encode(errors="backslashreplace").decode()
    return Draft([Body.of_lost(lsns, readable)])


def _parts(records: pa.RecordBatch, group_bytes: int) -> list[pa.RecordBatch]:
    if records.nbytes <= group_bytes or records.num_rows == 1:
        return [records]
    half = records.num_rows // 2
    left, right = records.slice(0, half), records.slice(half)
    return [*_parts(left, group_bytes), *_parts(right, group_bytes)]
