"""The lag of a stream's groups for monitoring systems: `headwater lag --prometheus, --textfile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headwater.buffer import metric_names
from headwater.cli.terminal import gather_bounded
from headwater.core.errors import HeadwaterError, NotFound
from headwater.core.metrics import Sample, labels_of

if TYPE_CHECKING:
    from headwater.buffer.consumer import Lag
    from headwater.buffer.stream import Stream


class GroupLags(NamedTuple):
    """How far one group is behind, by partition."""

    group: str
    lags: dict[int, Lag | None]
    """None where the lag is unknown."""
    lost: dict[int, int]
    """Records that retention deleted before the group processed them, where that is known."""

    @property
    def is_known(self) -> bool:
        """Whether the lag of every partition is known."""
        return None not in self.lags.values()


async def lags_of_groups(
    stream: Stream, partitions: Sequence[int], group: str | None
) -> list[GroupLags]:
    """The lag of one group; of all groups, and of the owners of the partitions, without a name.

    `NotFound` if no partition knows the group.
    """
    from headwater.buffer.group import list_groups

    names = [one.group for one in await list_groups(stream)]
    if group is None:
        found = await gather_bounded(partial(_of_group, stream, partitions), names)
        return [*found, *await _of_owners(stream, partitions, known=names)]
    if group in names:
        return [await _of_group(stream, partitions, group)]
    lags = await gather_bounded(partial(_lag, stream, group), partitions)
    if all(isinstance(one, NotFound) for one in lags):
        raise NotFound(f"group {group!r} is not known to stream {stream.name!r}. Check its name")
    return [_group_lags(group, partitions, lags)]


def lag_samples(stream: str, groups: Sequence[GroupLags]) -> list[Sample]:
    """The lags as samples."""
    return [sample for one in groups for sample in _samples(stream, one)]


def _samples(stream: str, one: GroupLags) -> Iterator[Sample]:
    definitions = metric_names.GROUP
    for partition, lag in one.lags.items():
        labels = labels_of({"stream": stream, "partition": partition, "group": one.group})
        if lag is not None:
            for field in ("batches", "records", "size_bytes", "seconds"):
                value = getattr(lag, field)
                if value is not None:  # too many batches to add up their sizes
                    yield Sample(definitions[field], labels, value)
        if partition in one.lost:
            yield Sample(definitions["lost"], labels, one.lost[partition])
    unknown = sum(lag is None for lag in one.lags.values())
    yield Sample(definitions["unknown"], labels_of({"stream": stream, "group": one.group}), unknown)


async def _of_group(stream: Stream, partitions: Sequence[int], group: str) -> GroupLags:
    from headwater.buffer.group import describe_group

    try:
        described = await describe_group(stream, group=group)
    except HeadwaterError:
        return GroupLags(group, dict.fromkeys(partitions), {})
    of = {one.partition: one for one in described.partitions}
    known = {one: of[one] for one in partitions if one in of and not of[one].problem}
    return GroupLags(
        group,
        {one: known[one].lag if one in known else None for one in partitions},
        {one: found.lost for one, found in known.items()},
    )


async def _of_owners(
    stream: Stream, partitions: Sequence[int], *, known: Sequence[str]
) -> list[GroupLags]:
    """The lag of the groups that own a queue, without those that are known by their register."""

    async def owner(partition: int) -> str | HeadwaterError:
        try:
            return (await stream.queue_reader(partition).state()).group
        except HeadwaterError as error:
            return error

    owners = dict(zip(partitions, await gather_bounded(owner, partitions), strict=True))
    names = {one for one in owners.values() if isinstance(one, str)} - {"", *known}
    found = []
    for name in sorted(names):
        # Who owns a queue that cannot be read is unknown: it counts for each of them.
        of = [one for one, owner in owners.items() if owner == name or not isinstance(owner, str)]
        lags = await gather_bounded(partial(_lag, stream, name), of)
        found.append(_group_lags(name, of, lags))
    unknown = [one for one, owner in owners.items() if not isinstance(owner, str)]
    if unknown and not found:
        found.append(GroupLags("", dict.fromkeys(unknown), {}))
    return found


async def _lag(stream: Stream, group: str, partition: int) -> Lag | HeadwaterError:
    from headwater.buffer.consumer import lag

    try:
        return await lag(stream, partition=partition, group=group)
    except HeadwaterError as error:
        return error


def _group_lags(
    group: str, partitions: Sequence[int], lags: Sequence[Lag | HeadwaterError]
) -> GroupLags:
    found = zip(partitions, lags, strict=True)
    return GroupLags(
        group, {one: None if isinstance(lag, HeadwaterError) else lag for one, lag in found}, {}
    )
