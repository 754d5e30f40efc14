"""Option values, parsed from the text that Spark passes on.

Offsets, times and partitions are spelled as for Spark's Kafka source:

    earliest, latest, {"orders": {"0": 23, "1": -2}}     -2 is earliest, -1 is latest
    {"orders": [0, 1]}                                   partitions of streams
    1767225600000, 2026-01-01T00:00:00Z                  a moment
    {"orders": {"0": 1767225600000}}                     a moment for each partition
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from headwater.buffer.consumer.positions import time_us_of
from headwater.buffer.layout import check_group_name, check_stream_name
from headwater.buffer.stream.settings import parse_duration_ms, parse_size_bytes
from headwater.core.errors import Refused
from headwater.store.address import parse_address


class Mode(StrEnum):
    """The door of Spark's that was taken."""

    READ = "read"
    READ_STREAM = "readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


READING: Final = frozenset({Mode.READ, Mode.READ_STREAM})
WRITING: Final = frozenset({Mode.WRITE, Mode.WRITE_STREAM})


_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no")


def parse_text(name: str, text: str) -> str:
    """Anything but nothing."""
    if not text.strip():
        raise Refused(f"{name} is empty")
    return text.strip()


def parse_url(name: str, text: str) -> str:
    """The address of a store, checked without asking anybody."""
    url = parse_text(name, text)
    parse_address(url, {})
    return url


def parse_flag(name: str, text: str) -> bool:
    """True or false."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise Refused(f"{name}={text}: it is true or false")


def parse_count(name: str, text: str) -> int:
    """A whole number above 0."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise Refused(f"{name}={text}: expected a whole number above 0")
    return int(text)


def parse_number(name: str, text: str) -> int:
    """A whole number from 0 on."""
    if not text.strip().isdecimal():
        raise Refused(f"{name}={text}: expected a whole number, 0 or above")
    return int(text)


def parse_bytes(name: str, text: str) -> int:
    """A size above 0, with or without a unit."""
    size_bytes = parse_size_bytes(name, text)
    if size_bytes < 1:
        raise Refused(f"{name}={text}: expected a size above 0")
    return size_bytes


def parse_wait_ms(name: str, text: str) -> int:
    """A duration above 0, with or without a unit."""
    wait_ms = parse_duration_ms(name, text)
    if wait_ms < 1:
        raise Refused(f"{name}={text}: expected a duration above 0")
    return wait_ms


def parse_names(name: str, text: str) -> list[str]:
    """Names with commas between them, each once."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or len(set(names)) < len(names):
        raise Refused(f"{name}={text}: expected one or more names, each once, with commas between")
    return names


def parse_streams(name: str, text: str) -> list[str]:
    """Names of streams with commas between them."""
    return [check_stream_name(stream) for stream in parse_names(name, text)]


def parse_stream(name: str, text: str) -> str:
    """The name of one stream."""
    return check_stream_name(parse_text(name, text))


def parse_group(name: str, text: str) -> str:
    """The name of a group."""
    return check_group_name(parse_text(name, text))


def parse_pattern(name: str, text: str) -> str:
    """A regular expression."""
    try:
        re.compile(parse_text(name, text))
    except re.error as error:
        raise Refused(f"{name}={text} is not a regular expression: {error}") from error
    return text.strip()


def one_of(*choices: str) -> Callable[[str, str], str]:
    """One of some words, however they are capitalised."""
    known = {choice.lower(): choice for choice in choices}

    def choose(name: str, text: str) -> str:
        found = known.get(text.strip().lower())
        if found is None:
            raise Refused(f"{name}={text}: it is {' or '.join(choices)}")
        return found

    return choose


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
