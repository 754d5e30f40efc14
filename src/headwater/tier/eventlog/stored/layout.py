"""Where the objects of a log of events stand.

<prefix>/log.json                                          which log this is
<prefix>/<partition>/floor.json                            from where on events are there
<prefix>/<partition>/<offset, 20 digits>                   events
<prefix>/<partition>/snapshot-<offset, 20 digits>-<token>  what the events through an offset
                                                           come to
"""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = "metadata"
_EVENT: Final = re.compile(r"[0-9]{20}")
_SNAPSHOT: Final = re.compile(r"snapshot-([0-9]{20})-[0-9a-f]{32}")


def log_key(prefix: str) -> str:
    """The register that says which log this is."""
    return f"{prefix}/log.json"


class Place:
    """The keys of one metadata partition."""

    def __init__(self, prefix: str, partition: int) -> None:
        self.folder: Final = f"{prefix}/{partition}"

    @property
    def floor(self) -> str:
        """The register of the floor."""
        return f"{self.folder}/floor.json"

    def event(self, offset: int) -> str:
        """The event at an offset. Keys are in the order of offsets, and before all others."""
        return f"{self.folder}/{offset:020d}"

    def snapshot(self, through_offset: int, token: str) -> str:
        """A snapshot, under a key that nobody ever wrote or will write again."""
        return f"{self.folder}/snapshot-{through_offset:020d}-{token}"

    @property
    def before_snapshots(self) -> str:
        """Above the keys of all events, below those of all snapshots."""
        return f"{self.folder}/snapshot-"

    def event_offset(self, key: str) -> int | None:
        """The offset of an event by its key; None for anything else."""
        name = key.removeprefix(f"{self.folder}/")
        return int(name) if _EVENT.fullmatch(name) else None

    def snapshot_offset(self, key: str) -> int | None:
        """Through which offset a snapshot goes, by its key; None for anything else."""
        found = _SNAPSHOT.fullmatch(key.removeprefix(f"{self.folder}/"))
        return int(found[1]) if found else None
