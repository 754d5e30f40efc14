"""Whether the stream of a partition is still there.

A leader that goes on after its stream was deleted copies under an id that nobody reads, and drops
its local log for it. The register of a stream is never removed, only said to be deleted: a store in
which there is none never had the stream, and somebody keeps a tier there without one.
"""

from __future__ import annotations

from headwater.buffer.stream.register import StreamRegister
from headwater.core.errors import NotFound
from headwater.store import Store
from headwater.tier.errors import StreamGone
from headwater.tier.identity import TopicIdPartition


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
