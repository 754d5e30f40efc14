"""The policy of a stream: a number that makes a change of what is kept count for every collector.

A change raises the number in `stream.json`, in the write of the change itself where it is one of
settings. Then it writes the number into the queue of every partition, and only then returns. From
there on no collector raises a floor that it decided on before the change, because it names the
number that it read before it decided.

If the process dies in between, some collectors still go by the old settings. Repeating the change
repeats both steps.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from headwater.buffer.stream.config import StreamConfig, StreamRegister, with_changes
from headwater.buffer.stream.handle import Stream, explain_deletion, raise_queue_policy
from headwater.core import runtime
from headwater.core.errors import NotFound
from headwater.store import Store

PARTITIONS_AT_ONCE: Final = 16


_POLICY_FIELDS: Final = frozenset(
    {"retention_ms", "retention_bytes", "required_group", "consumer", "gc_grace_ms"}
)
"""What decides how long records stay. With nodes, the grace period does."""


def changes_policy(changes: Collection[str]) -> bool:
    """Whether one of these settings decides how long records stay."""
    return not _POLICY_FIELDS.isdisjoint(changes)


def with_alteration(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    """The config of an existing stream with these changes, and the policy that they need.

    Also if they have the same values: then an earlier alteration may have been interrupted.
    """
    if changes_policy(changes):
        changes = {**changes, "policy": config.policy + 1}
    return with_changes(config, changes)


async def announce_policy(store: Store, config: StreamConfig) -> StreamConfig:
    """Write the policy of this config into every queue. Returns the config with the final one.

    A `stream.json` that was restored from a backup may be behind the queues: then its number
    continues above theirs.
    """
    register = StreamRegister(store, config.name)
    async with explain_deletion(Stream(store, config)):
        while True:
            write, partitions = (
                functools.partial(raise_queue_policy, store, config),
                config.partitions,
            )
            found = await runtime.gather_each(write, range(partitions), at_once=PARTITIONS_AT_ONCE)
            if max(found) <= config.policy:
                return config
            config = await register.update_live(config.id, functools.partial(_above, max(found)))


def _above(highest: int, now: StreamConfig) -> StreamConfig:
    # Another change may have raised both meanwhile.
    return now if now.policy >= highest else msgspec.structs.replace(now, policy=highest + 1)


async def renew_policy(stream: Stream) -> Stream:
    """Raise the policy after a change outside of `stream.json`, before it is reported."""

    def rise(now: StreamConfig) -> StreamConfig:
        return msgspec.structs.replace(now, policy=now.policy + 1)

    config = await StreamRegister(stream.store, stream.name).update_live(stream.id, rise)
    return stream.with_config(await announce_policy(stream.store, config))


async def renew_policy_for(stream: Stream, group: str) -> None:
    """Raise the policy after a group moved back, if it is the required one.

    The move comes first: a collector that reads the new policy then finds the group where it is.
    """
    try:
        config = await StreamRegister(stream.store, stream.name).read_live(writing=False)
    except NotFound:
        return  # deleted: nothing is kept for the group any more
    if config.id == stream.id and config.required_group == group:
        await renew_policy(stream)
