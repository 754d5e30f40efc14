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
    """The oldest LSN that can be read, and who said so."""

    log_start_format: int
    leader_epoch: int
    first_lsn: int
    """What lies below was given up."""
    leaders: tuple[tuple[int, int], ...] = ()
    """Epochs of the last leaders, and when each began by the clock of the store, oldest first."""

    def ended_ms(self, epoch: int) -> int | None:
        """When it was over for an epoch, or later; None if no newer one is known."""
        return next((began_ms for later, began_ms in self.leaders if later > epoch), None)


class LogStartRegister:
    """Where the log start of one partition is kept."""

    def __init__(self, store: Store, partition: TopicIdPartition) -> None:
        key = log_start_key(partition.name, partition.partition, str(partition.topic_id))
        self.stream = StreamWatch(store, partition)
        """Whether there is anything left to lead."""
        self._register = Register(store, key, LogStart)

    @property
    def key(self) -> str:
        """Where it stands."""
        return self._register.key

    async def read(self) -> LogStart | None:
        """What is stored; None if nobody ever led this partition with a tier."""
        try:
            return _checked((await self._register.read()).value)
        except NotFound:
            return None

    async def first_lsn(self) -> int | None:
        """The oldest LSN that can be read; None if nobody ever led this partition with a tier."""
        stored = await self.read()
        return None if stored is None else stored.first_lsn

    async def stamp(self, epoch: int, *, began_ms: int, oldest_lsn: int) -> LogStart:
        """Become the one who moves it. Where there is none, it begins at `oldest_lsn`."""

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
        """Raise it; what it is then. It never goes down.

        `at_most` is asked right before each attempt to write: what is needed may have become more
        since somebody decided to move it.
        """

        def change(stored: LogStart | None) -> LogStart:
            if stored is None:
                raise RolledBack(f"{self.key} is gone: nothing says where the log begins")
            self._refuse_newer(stored, epoch)
            wanted = first_lsn if at_most is None else min(first_lsn, at_most())
            return msgspec.structs.replace(stored, first_lsn=max(stored.first_lsn, wanted))

        return (await self._register.update(change)).value

    async def lower(self, epoch_max: int) -> bool:
        """Take back an epoch that no leader reaches, of a partition that nobody leads now.

        Whether there was one. Where the log begins stays as it is. Of epochs above it, it is known
        no longer when they began: what they unlisted goes later for it, never earlier.
        """
        stored = await self.read()
        if stored is None or stored.leader_epoch <= epoch_max:
            return False

        def change(stored: LogStart | None) -> LogStart:
            if stored is None:
                raise RolledBack(f"{self.key} is gone: nothing says where the log begins")
            leaders = tuple(one for one in _checked(stored).leaders if one[0] <= epoch_max)
            epoch = min(stored.leader_epoch, epoch_max)
            return msgspec.structs.replace(stored, leader_epoch=epoch, leaders=leaders)

        await self._register.update(change)
        return True

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


class StreamWatch:
    """Looks at the register of one stream."""

    def __init__(self, store: Store, partition: TopicIdPartition) -> None:
        self._store = store
        self._partition = partition

    async def check(self) -> None:
        """Raise `StreamGone` if the stream was deleted; one request."""
        name, topic_id = self._partition.name, str(self._partition.topic_id)
        try:
            now = await StreamRegister(self._store, name).read(writing=False)
        except NotFound:
            return
        if now.id == topic_id and now.is_live:
            return
        if now.id == topic_id:
            how = "was deleted"
            left = f"headwater stream delete URL {name} removes when it is called once more"
        else:
            # No advice to delete by name: that would be the other one.
            how = f"is another one by now ({now.id})"
            left = f"stands in folders of that id, which nobody reads: {topic_id}"
        raise StreamGone(
            f"stream {name!r} ({topic_id}) {how}: nothing more of partition "
            f"{self._partition.partition} is copied. Stop its leader; what that copied in the "
            f"meantime {left}"
        )
