"""Option values, parsed from the text that Spark passes on.

Offsets, times and partitions are spelled as for Spark's Kafka source:

    earliest, latest, {"orders": {"0": 23, "1": -2}}     -2 is earliest, -1 is latest
    {"orders": [0, 1]}                                   partitions of streams
    1767225600000, 2026-01-01T00:00:00Z                  a time
    {"orders": {"0": 1767225600000}}                     a time for each partition
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from headwater.buffer.consumer.positions import time_us_of
from headwater.buffer.layout import check_group_name, check_stream_name
from headwater.buffer.queue.contract import TimeBy
from headwater.core import settings
from headwater.core.errors import Refused
from headwater.store.address import parse_address

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OLDEST_OFFSET: Final = -2
NEWEST_OFFSET: Final = -1
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")

Offsets = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]
"""A word, or the LSN of each partition of each stream; -2 and -1 are the words as numbers."""


@dataclass(frozen=True)
class TimeBound:
    """Where a read begins or ends, by time."""

    option: str
    """The option that sets it."""
    by: TimeBy
    moment_us: int = 0
    """For every partition, unless `moments_us` has one for each."""
    moments_us: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def of(self, stream: str, partition: int) -> int:
        """The time for one partition."""
        return self.moments_us[stream][partition] if self.moments_us else self.moment_us


_OFFSETS_FORM: Final = 'earliest, latest, or {"orders": {"0": 23, "1": -2}}'
_PARTITIONS_FORM: Final = '{"orders": [0, 1]}'
_TIMES_FORM: Final = '{"orders": {"0": 1767225600000, "1": 1767225600000}}'

parse_count: Final = functools.partial(settings.parse_whole_number, at_least=1)
parse_version: Final = functools.partial(settings.parse_whole_number, at_least=0)


def one_of(*choices: str) -> Callable[[str, str], str]:
    """A parser for one of several words; case does not count."""
    return functools.partial(settings.parse_choice, choices=choices)


def parse_text(name: str, text: str) -> str:
    """Text that is not blank."""
    if not text.strip():
        raise Refused(f"{name} is empty")
    return text.strip()


def parse_url(name: str, text: str) -> str:
    """The address of a store. Sends no request."""
    url = parse_text(name, text)
    parse_address(url, {})
    return url


def parse_bytes(name: str, text: str) -> int:
    """A size above 0, with or without a unit."""
    size_bytes = settings.parse_size_bytes(name, text)
    if size_bytes < 1:
        raise Refused(f"{name}={text}: expected a size above 0")
    return size_bytes


def parse_timeout_ms(name: str, text: str) -> int:
    """A duration above 0, with or without a unit."""
    timeout_ms = settings.parse_duration_ms(name, text)
    if timeout_ms < 1:
        raise Refused(f"{name}={text}: expected a duration above 0")
    return timeout_ms


def parse_names(name: str, text: str) -> tuple[str, ...]:
    """Distinct names, separated by commas."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names or len(set(names)) < len(names):
        raise Refused(f"{name}={text}: expected one or more names, each once, with commas between")
    return names


def parse_streams(name: str, text: str) -> tuple[str, ...]:
    """Names of streams, separated by commas."""
    return tuple(check_stream_name(stream) for stream in parse_names(name, text))


def parse_stream(name: str, text: str) -> str:
    return check_stream_name(parse_text(name, text))


def parse_group(name: str, text: str) -> str:
    return check_group_name(parse_text(name, text))


def parse_pattern(name: str, text: str) -> str:
    try:
        re.compile(parse_text(name, text))
    except re.error as error:
        raise Refused(f"{name}={text} is not a regular expression: {error}") from error
    return text.strip()


def parse_offsets(name: str, text: str) -> Offsets:
    word = text.strip().lower()
    if word == EARLIEST:
        return EARLIEST
    if word == LATEST:
        return LATEST
    return _by_partition(name, text, _OFFSETS_FORM, functools.partial(_offset, name, text))


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
    """A time for each partition of each stream."""
    return _by_partition(name, text, _TIMES_FORM, lambda time: parse_moment_us(name, str(time)))


def parse_assignment(name: str, text: str) -> dict[str, list[int]]:
    """Partitions of streams."""
    assigned: dict[str, list[int]] = {}
    for stream, partitions in _json_object(name, text, _PARTITIONS_FORM).items():
        if not isinstance(partitions, list) or not partitions:
            raise Refused(f"{name}={text}: expected {_PARTITIONS_FORM}")
        numbers = sorted({_partition(name, text, partition) for partition in partitions})
        if len(numbers) < len(partitions):
            raise Refused(f"{name}={text}: a partition of {stream!r} is named twice")
        assigned[stream] = numbers
    return assigned


def _by_partition(
    name: str, text: str, form: str, parse: Callable[[object], int]
) -> dict[str, dict[int, int]]:
    parsed: dict[str, dict[int, int]] = {}
    for stream, partitions in _json_object(name, text, form).items():
        if not isinstance(partitions, dict):
            raise Refused(f"{name}={text}: expected {form}")
        parsed[stream] = {
            _partition(name, text, partition): parse(value)
            for partition, value in partitions.items()
        }
    return parsed


def _json_object(name: str, text: str, form: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        decoded = None
    if not isinstance(decoded, dict) or not decoded:
        raise Refused(f"{name}={text}: expected {form}")
    return decoded


def _partition(name: str, text: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    raise Refused(f"{name}={text}: {value!r} is not the number of a partition")


def _offset(name: str, text: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= 1 or value in (OLDEST_OFFSET, NEWEST_OFFSET):
            return value
        if value == 0:
            raise Refused(
                f"{name}={text}: offset 0: Headwater's offsets begin with 1; -2 is the earliest, "
                "and -1 the latest"
            )
    raise Refused(
        f"{name}={text}: {value!r} is not an offset: use 1 or more, -2 for the earliest or -1 for "
        "the latest"
    )
