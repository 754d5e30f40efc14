"""The checks of the conformance suite, and why Headwater needs each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from headwater.store import conformance_checks as alone
from headwater.store import conformance_races as races
from headwater.store.conformance_checks import CheckFolder


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, and why Headwater needs it."""

    name: str
    claim: str
    run: Callable[[CheckFolder], Awaitable[str]]
    is_race: bool = False


CHECKS: Final = (
    Check(
        "read-your-write",
        "An object can be read as soon as it is written, because consumers read a record as soon "
        "as it is accepted.",
        alone.read_your_write,
    ),
    Check(
        "ranges",
        "Any range of an object can be read, with its version, because readers take single "
        "records and footers out of large objects.",
        alone.ranges,
    ),
    Check(
        "head",
        "Size and version can be read without the bytes, because a check must stay cheap.",
        alone.head,
    ),
    Check(
        "overwrite",
        "An overwritten object shows its new content at once, because a stale read would bring "
        "back decisions that were already replaced.",
        alone.overwrite,
    ),
    Check(
        "empty-object",
        "An object may be empty, because markers are.",
        alone.empty_object,
    ),
    Check(
        "create-if-absent",
        "Creating what exists is refused, because a number in a log is taken once.",
        alone.create_if_absent,
    ),
    Check(
        "replace-if-unchanged",
        "Replacing succeeds for the given version and for no other, because a change based on an "
        "old version would undo another writer's.",
        alone.replace_if_unchanged,
    ),
    Check(
        "version-changes",
        "Different contents have different versions, because otherwise a change in between is not "
        "noticed.",
        alone.version_changes,
    ),
    Check(
        "identical-rewrite",
        "Whether equal bytes have equal versions is good to know: Headwater puts a nonce into "
        "every conditionally written object, so both are fine.",
        alone.identical_rewrite,
    ),
    Check(
        "list",
        "A listing is ordered and complete right after a write or a delete, because recovery "
        "lists objects that no index has yet.",
        alone.list_complete,
    ),
    Check(
        "list-start-after",
        "A listing begins strictly above a given key, because readers continue where they stopped.",
        alone.list_start_after,
    ),
    Check(
        "list-folder",
        "Listing folder a does not show ab, because one log must not see another's objects.",
        alone.list_folder,
    ),
    Check(
        "list-folders",
        "The folders below a folder are listed without their contents, because this is how streams "
        "are found.",
        alone.list_folders,
    ),
    Check(
        "list-pages",
        "A listing of more than one page is whole, because logs have more than 1,000 objects.",
        alone.list_pages,
    ),
    Check(
        "delete",
        "Deleting is visible at once and may be repeated, because cleaning up is retried.",
        alone.delete,
    ),
    Check(
        "large-object",
        "An object sent in parts reads back whole and as a stream, because segments are large.",
        alone.large_object,
    ),
    Check(
        "race-replace",
        "Of writers that replace the same version only one succeeds, because every other one "
        "would erase an accepted change.",
        races.race_replace,
        is_race=True,
    ),
    Check(
        "race-create",
        "Of writers that create the same key exactly one succeeds, because a second one would "
        "erase an accepted record.",
        races.race_create,
        is_race=True,
    ),
    Check(
        "race-register",
        "A register changed by many at once loses no change, because logs keep their heads in one.",
        races.race_register,
        is_race=True,
    ),
    Check(
        "race-numbered-log",
        "A numbered log appended to by many at once is dense and has each entry once, because the "
        "queues and the tier's events are such logs.",
        races.race_numbered_log,
        is_race=True,
    ),
)


WORST: Final = (
    "race-replace",
    "race-create",
    "race-register",
    "race-numbered-log",
    "replace-if-unchanged",
    "create-if-absent",
    "version-changes",
)
"""Checks whose failure loses records, worst first."""
