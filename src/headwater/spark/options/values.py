"""Values of options, from the text that Spark hands on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from headwater.buffer.layout import check_group_name, check_stream_name
from headwater.buffer.stream.settings import parse_duration_ms, parse_size_bytes
from headwater.core.errors import Refused
from headwater.store.address import parse_address

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
