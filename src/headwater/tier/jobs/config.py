"""Settings and metrics of the tier's jobs."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, cast

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.core.retry import retry_pause_s

UNLIMITED: Final = -1
NO_LIMIT: Final = -1
_MIB: Final = 1 << 20
_DAY_MS: Final = 24 * 3600 * 1000
_LARGEST: Final = (1 << 63) - 1
_LEAST: Final = {
    "retention_ms": UNLIMITED,
    "retention_bytes": UNLIMITED,
    "delete_delay_ms": 0,
    "local_retention_ms": 0,
    "local_retention_bytes": 0,
    "merge_below_bytes": 0,
    "merge_target_bytes": 0,
    "merge_segments": 2,
    "bytes_per_s": NO_LIMIT,
    "orphan_grace_ms": 0,
}
_MEANING: Final = {
    "retention_ms": "0 or more, or -1 for ever",
    "retention_bytes": "0 or more, or -1 for ever",
    "bytes_per_s": "1 or more, or -1 for no limit",
    "merge_segments": "2 or more, because it takes two to merge",
}
_SECONDS: Final = ("interval_s", "retry_base_s", "retry_cap_s")


class Tiering(StrEnum):
    """Whether a partition's segments move to object storage."""

    ON = "on"
    KEEP = "keep"
    """Nothing more is copied, and nothing that was is deleted."""
    DELETE = "delete"
    """Nothing more is copied, and what was is given up, but for what a slot still needs."""


@dataclass(frozen=True, slots=True)
class TierConfig:
    """How long segments stay, and how the jobs go about it."""

    tiering: Tiering = Tiering.ON
    retention_ms: int = UNLIMITED
    """Remote segments whose newest record is older may go."""
    retention_bytes: int = UNLIMITED
    """The oldest remote segments beyond so many bytes may go."""
    delete_delay_ms: int = _DAY_MS
    """How long an object stays after its segment was unlisted, for those who are reading it."""
    local_retention_ms: int = 0
    """How long records stay on the local disk although they are remote."""
    local_retention_bytes: int = 0
    """How much of the log stays on the local disk although it is remote."""
    merge_below_bytes: int = 32 * _MIB
    """Remote segments smaller than this are merged with their neighbours; 0: none are."""
    merge_target_bytes: int = 128 * _MIB
    """A merged segment is about so large at most."""
    merge_segments: int = 64
    """So many small segments in a row are merged, even if together they are still small."""
    bytes_per_s: int = NO_LIMIT
    """How fast objects are written and read, on average."""
    orphan_grace_ms: int = _DAY_MS
    """How old an object that no event names is, by the store's clock, before it is removed."""
    interval_s: float = 10.0
    """Between two rounds of all jobs."""
    retry_base_s: float = 1.0
    retry_cap_s: float = 300.0
    """Pauses after failures double from the one to the other, with jitter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiering", _tiering(self.tiering))
        for name, least in _LEAST.items():
            wanted = f"a whole number, {_MEANING.get(name, '0 or more')}"
            check_whole(name, getattr(self, name), least, _LARGEST, wanted)
        for name in _SECONDS:
            _check_seconds(name, getattr(self, name))
        if self.bytes_per_s == 0:
            raise Refused(f"bytes_per_s is 0: {_MEANING['bytes_per_s']}")
        if self.merge_target_bytes < self.merge_below_bytes:
            raise Refused(
                "merge_target_bytes is below merge_below_bytes: they would merge for ever"
            )
        if self.merge_target_bytes > limits.TIER_SEGMENT_MAX_BYTES:
            raise Refused(
                f"merge_target_bytes is {self.merge_target_bytes:,}: a segment has at most "
                f"{limits.TIER_SEGMENT_MAX_BYTES:,} bytes (TIER_SEGMENT_MAX_BYTES)"
            )

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return retry_pause_s(failures, base_s=self.retry_base_s, cap_s=self.retry_cap_s)


def check_whole(name: str, value: object, least: int, largest: int, wanted: str) -> None:
    """Refuse what is no whole number from one to the other."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        raise Refused(f"{name} is {value!r}: it must be {wanted}")


def _check_seconds(name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < cast(float, value) < math.inf:
        raise Refused(f"{name} is {value!r}: it must be a number of seconds above 0")


def _tiering(word: object) -> Tiering:
    words = [str(one) for one in Tiering]
    if word in words:
        return Tiering(str(word))
    near = difflib.get_close_matches(str(word).lower(), words, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise Refused(
        f"tiering is {word!r}{hint}: {Tiering.ON.value!r}, or to stop it {Tiering.KEEP.value!r}, "
        f"which deletes nothing, or {Tiering.DELETE.value!r}, which gives up what is remote"
    )


@dataclass(slots=True, eq=False)
class TierMetrics:
    """Of one leader, since it began."""

    copied_segments: int = 0
    copied_bytes: int = 0
    """Of objects made from the local log."""
    merged_segments: int = 0
    """Made by merging."""
    merged_bytes: int = 0
    unlisted_segments: int = 0
    removed_objects: int = 0
    dropped_lsns: int = 0
    """From the local log, because they are remote."""
    lag_lsns: int = 0
    """LSNs of the local log that are not remote, when a round last came to its end."""
    missing_lsns: int = 0
    """LSNs at or above the log start that are neither remote nor local."""
    failures: Counter[str] = field(default_factory=Counter)
    """By job."""
    succeeded_ms: dict[str, int] = field(default_factory=dict)
    """By job: when it last came to its end, by this process's clock."""
