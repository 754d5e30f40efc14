"""Offsets, times and partitions as Kafka's source spells them, from text.

earliest, latest, {"orders": {"0": 23, "1": -2}}     -2 is earliest, -1 is latest
{"orders": [0, 1]}                                   partitions of streams
1767225600000, 2026-01-01T00:00:00Z                  a moment
{"orders": {"0": 1767225600000}}                     a moment for each partition
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from headwater.buffer.consumer.positions import time_us_of
from headwater.core.errors import Refused

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OLDEST_OFFSET: Final = -2
NEWEST_OFFSET: Final = -1
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")

Offsets = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]
"""A word, or the LSN of each partition of each stream; -2 and -1 are the words as numbers."""


def parse_offsets(name: str, text: str) -> Offsets:
    """Where to begin or end."""
    word = text.strip().lower()
    if word == EARLIEST:
        return EARLIEST
    if word == LATEST:
        return LATEST
    such_as = 'earliest, latest, or {"orders": {"0": 23, "1": -2}}'
    offsets: dict[str, dict[int, int]] = {}
    for stream, partitions in _json_object(name, text, such_as).items():
        if not isinstance(partitions, dict):
            raise Refused(f"{name}={text}: expected {such_as}")
        offsets[stream] = {
            _partition(name, text, partition): _offset(name, text, offset)
            for partition, offset in partitions.items()
        }
    return offsets


def parse_assignment(name: str, text: str) -> dict[str, list[int]]:
    """Which partitions of which streams."""
    such_as = '{"orders": [0, 1]}'
    assigned: dict[str, list[int]] = {}
    for stream, partitions in _json_object(name, text, such_as).items():
        if not isinstance(partitions, list) or not partitions:
            raise Refused(f"{name}={text}: expected {such_as}")
        numbers = sorted({_partition(name, text, partition) for partition in partitions})
        if len(numbers) < len(partitions):
            raise Refused(f"{name}={text}: a partition of {stream!r} is named twice")
        assigned[stream] = numbers
    return assigned


def parse_moment_us(name: str, text: str) -> int:
    """Microseconds since 1970, from milliseconds or a time."""
    if _NUMBER.fullmatch(text.strip()):
        return int(text) * 1000
    try:
        return time_us_of(text.strip())
    except Refused:
        raise Refused(
            f"{name}={text}: expected milliseconds since 1970, or a time such as "
            "2026-01-31T08:00:00Z"
        ) from None


def parse_moments_us(name: str, text: str) -> dict[str, dict[int, int]]:
    """A moment for each partition of each stream."""
    such_as = '{"orders": {"0": 1767225600000, "1": 1767225600000}}'
    moments: dict[str, dict[int, int]] = {}
    for stream, partitions in _json_object(name, text, such_as).items():
        if not isinstance(partitions, dict):
            raise Refused(f"{name}={text}: expected {such_as}")
        moments[stream] = {
            _partition(name, text, partition): parse_moment_us(name, str(moment))
            for partition, moment in partitions.items()
        }
    return moments


def _json_object(name: str, text: str, such_as: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict) or not found:
        raise Refused(f"{name}={text}: expected {such_as}")
    return found


def _partition(name: str, text: str, given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if isinstance(given, str) and given.isdecimal():
        return int(given)
    raise Refused(f"{name}={text}: {given!r} is not the number of a partition")


def _offset(name: str, text: str, given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        if given >= 1 or given in (OLDEST_OFFSET, NEWEST_OFFSET):
            return given
        if given == 0:
            raise Refused(
                f"{name}={text}: offset 0: offsets begin with 1 here; -2 is the earliest one, "
                "and -1 the latest"
            )
    raise Refused(f"{name}={text}: {given!r} is no offset: 1 and above, -2 earliest, -1 latest")
