"""The log start of a partition: the oldest LSN that can still be read. One register per partition.

Always holds: it only rises; only the leader with the highest epoch moves it, and an older leader
is `Fenced`; it moves before anything below it is deleted. An epoch that no leader can reach is
removed (`lower`) only together with the log of events, while no leader runs.

The register also has the times at which the last leaders began. Events of an older leader were
appended before the next leader began, however long that took; their own timestamps only say when
they were created.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from headwater.buffer.layout import log_start_key
from headwater.buffer.stream.config import StreamRegister
from headwater.core.errors import Fenced, NotFound, NotSupported, RolledBack
from headwater.store import Register, Store
from headwater.tier.errors import StreamGone
from headwater.tier.events import TopicIdPartition

FORMAT: Final = 1
LEADERS_KEPT: Final = 32


class LogStart(msgspec.Struct, frozen=True):
    log_start_format: int
    leader_epoch: int
    first_lsn: int
    """LSNs below are deleted."""
    leaders: tuple[tuple[int, int], ...] = ()
    """The last leaders' epochs, and when each began by the store's clock, oldest first."""

    def ended_ms(self, epoch: int) -> int | None:
        return next((began_ms for later, began_ms in self.leaders if later > epoch), None)


class LogStartRegister:
    """The register of the log start of one partition."""

    def __init__(self, store: Store, partition: TopicIdPartition) -> None:
        key = log_start_key(partition.name, partition.partition, str(partition.topic_id))
        self._store = store
        self._partition = partition
        self._register = Register(store, key, LogStart)

    @property
    def key(self) -> str:
        return self._register.key

    async def read(self) -> LogStart | None:
        """The stored log start; None if this partition never had a leader with a tier."""
        try:
            return _checked((await self._register.read()).value)
        except NotFound:
            return None

    async def first_lsn(self) -> int | None:
        """The oldest LSN that can be read; None if no leader ever tiered this partition."""
        stored = await self.read()
        return None if stored is None else stored.first_lsn

    async def begin_epoch(self, epoch: int, *, began_ms: int, oldest_lsn: int) -> LogStart:
        """Become the leader that moves it. A new log start is `oldest_lsn`."""

        def change(stored: LogStart | None) -> LogStart:
            if stored is None:
                return LogStart(FORMAT, epoch, oldest_lsn, ((epoch, began_ms),))
            self._refuse_newer(stored, epoch)
            before = [one for one in stored.leaders if one[0] < epoch]
            leaders = (*before, (epoch, began_ms))[-LEADERS_KEPT:]
            return LogStart(FORMAT, epoch, stored.first_lsn, leaders)

        return (await self._register.update(change)).value

    async def move(
        self, epoch: int, first_lsn: int, *, at_most: Callable[[], int] | None = None
    ) -> LogStart:
        """Raise it; returns the result. It never goes down.

        `at_most` is called before each attempt to write, because slots may need more LSNs than
        when the caller decided to move it.
        """

        def change(stored: LogStart | None) -> LogStart:
            stored = self._required(stored)
            self._refuse_newer(stored, epoch)
            wanted = first_lsn if at_most is None else min(first_lsn, at_most())
            return msgspec.structs.replace(stored, first_lsn=max(stored.first_lsn, wanted))

        return (await self._register.update(change)).value

    async def lower(self, epoch_max: int) -> bool:
        """Remove epochs that no leader can reach, while no leader runs; returns whether there were.

        The log start stays. The times at which those epochs began are removed too: segments that
        they unlisted are removed later for it, never earlier.
        """
        stored = await self.read()
        if stored is None or stored.leader_epoch <= epoch_max:
            return False

        def change(stored: LogStart | None) -> LogStart:
            stored = _checked(self._required(stored))
            leaders = tuple(one for one in stored.leaders if one[0] <= epoch_max)
            epoch = min(stored.leader_epoch, epoch_max)
            return msgspec.structs.replace(stored, leader_epoch=epoch, leaders=leaders)

        await self._register.update(change)
        return True

    async def check_stream(self) -> None:
        """Raise `StreamGone` if the stream was deleted. One request.

        After a deletion, a leader would copy under an id without readers, and drop its local log.
        The register of a stream is never removed, only marked as deleted. A store without that
        register never had the stream: its tier is used without streams.
        """
        name, topic_id = self._partition.name, str(self._partition.topic_id)
        try:
            now = await StreamRegister(self._store, name).read(writing=False)
        except NotFound:
            return
        if now.id == topic_id and now.is_live:
            return
        if now.id == topic_id:
            how = "was deleted"
            rest = f"headwater stream delete URL {name} removes when it is run once more"
        else:
            # No advice to delete by name: that would delete the other stream.
            how = f"is now another stream ({now.id})"
            rest = f"is in folders of that id, which has no readers: {topic_id}"
        raise StreamGone(
            f"stream {name!r} ({topic_id}) {how}: nothing more of partition "
            f"{self._partition.partition} is copied. Stop its leader; what that copied in the "
            f"meantime {rest}"
        )

    def _required(self, stored: LogStart | None) -> LogStart:
        if stored is None:
            raise RolledBack(f"{self.key} is missing: nothing says where the log begins")
        return stored

    def _refuse_newer(self, stored: LogStart, epoch: int) -> None:
        _checked(stored)
        if epoch < stored.leader_epoch:
            raise Fenced(f"{self.key}: epoch {stored.leader_epoch} leads, and {epoch} is over")


def _checked(stored: LogStart) -> LogStart:
    if stored.log_start_format != FORMAT:
        raise NotSupported(
            f"a log start of format {stored.log_start_format}; this version reads {FORMAT}. "
            "Upgrade Headwater."
        )
    return stored
