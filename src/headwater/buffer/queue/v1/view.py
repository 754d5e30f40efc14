"""Manifest and side object together, as they stood at one time.

They are two objects, so one of them is always read first. The manifest is: the side object is
written before each dequeue, so one that is read later has at least the manifest's first pending
sequence. Where it does not, somebody else took entries out. The other way round, a consumer that
dequeues between the two reads would look like that somebody.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.buffer.queue.v1.manifest_object import Found, ManifestObject
from headwater.buffer.queue.v1.side import Side, SideObject
from headwater.core import limits
from headwater.core.errors import Contended, Refused, RolledBack


class ConsumedElsewhere(Refused):
    """Another implementation's consumer took entries out of the queue: they have no LSNs."""


class View(NamedTuple):
    """A queue as it stood at one time."""

    found: Found
    side: Side


async def read_view(manifest: ManifestObject, side: SideObject) -> View:
    """How the queue stands; `RolledBack` or `ConsumedElsewhere` if the two do not fit."""
    found = await manifest.look()
    if found is None:
        await side.read()  # without a side object, there never was a queue
        found = await manifest.read()
    for _ in range(limits.V1_ATTEMPTS):
        beside = await side.read()
        check_front(manifest.key, found, beside)
        if beside.sequence <= found.next_sequence and not beside.is_after(found.epoch):
            return View(found, beside)
        # The manifest may only have been read too early.
        found = await manifest.read()
        check_not_back(manifest.key, found, beside)
    raise Contended(f"{manifest.key}: the queue changed at every look; look again")


def check_front(key: str, found: Found, side: Side | None) -> None:
    """Compare with a side object that was read later (None: there was none)."""
    acked = 0 if side is None else side.sequence
    if found.front <= acked:
        return
    missing = f"sequences {acked:,} to {found.front - 1:,}"
    cause = (
        f"{missing} of {key} were dequeued, and Headwater's side object is not there to tell their "
        "LSNs: another implementation consumed them, or the side object was deleted"
        if side is None
        else f"{missing} of {key} were dequeued by another implementation's consumer, so that "
        "their records have no LSNs here"
    )
    raise ConsumedElsewhere(
        f"{cause}. Stop that consumer; then `{_adopt_command(key)}` begins at sequence "
        f"{found.front:,} and leaves the others out, or make another stream"
    )


def _adopt_command(key: str) -> str:
    """URL stands for the store's address, which whoever reads the queue does not know."""
    _, name, partition, *_ = key.split("/")
    return f"headwater stream adopt URL {name} --partition {partition}"


def check_not_back(key: str, found: Found, side: Side) -> None:
    """Compare with a side object that was read earlier."""
    for name, is_back, there, known in (
        ("next sequence", found.next_sequence < side.sequence, found.next_sequence, side.sequence),
        ("epoch", side.is_after(found.epoch), found.epoch, side.epoch),
    ):
        if is_back:
            raise RolledBack(
                f"{key}: the {name} is {there:,}, and was {known:,} at the last acknowledgement: "
                "the manifest was deleted, or replaced by an older one. Restore the one that was "
                "there; in this one, batches would get sequences that were given before."
            )
