"""Where the bytes to look at come from: a file, an object of a store, or standard input.

Bytes on standard input that are hexadecimal digits are taken for hexadecimal text. No object of the
buffer consists of such digits alone, so nothing is lost by the guess.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from headwater.cli.loop import run as run_loop
from headwater.cli.standard_streams import check_input
from headwater.cli.store_commands import open_with_options
from headwater.core.errors import BadUrl, Denied, LimitExceeded, NotFound, Refused
from headwater.core.limits import GIB

STANDARD_INPUT: Final = "-"
READ_MAX_BYTES: Final = 1 * GIB
"""More than any object of the buffer has."""
_HEX: Final = re.compile(rb"[0-9A-Fa-f]+")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Source(NamedTuple):
    """The bytes of an object, and what it is called, where that is known."""

    name: str
    data: bytes

    @property
    def key(self) -> str:
        """The last part of the name: what the object itself says it is called."""
        return self.name.rpartition("/")[2]


def read_source(place: str, options: list[str]) -> Source:
    """Read an object; what cannot be read at all is `NotFound` or `Refused`."""
    if place == STANDARD_INPUT:
        return Source("", _from_standard_input())
    if _SCHEME.match(place) and not place.startswith("file://"):
        return _from_store(place, options)
    path = unquote(urlsplit(place).path) if place.startswith("file://") else place
    return Source(path, _from_file(Path(path)))


def split_key(url: str) -> tuple[str, str]:
    """The address of a store and a key in it, from the address of an object."""
    parts = urlsplit(url)
    root, _, key = parts.path.rpartition("/")
    if not key:
        raise BadUrl(f"{url} is the address of a store or a folder: name an object in it")
    return urlunsplit(parts._replace(path=root)), key


def _from_store(url: str, options: list[str]) -> Source:
    root, key = split_key(url)
    store = open_with_options(root, options)

    async def read() -> bytes:
        async with store:
            try:
                meta = await store.head(key)
                _check_size(meta.size_bytes)
                return bytes((await store.get(key)).data)
            except NotFound:
                raise NotFound(f"{url} does not exist") from None

    return Source(urlsplit(url).path, run_loop(read()))


def _from_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(READ_MAX_BYTES + 1)
    except FileNotFoundError:
        raise Refused(f"there is no file {path}") from None
    except IsADirectoryError:
        raise Refused(f"{path} is a directory: name a file in it") from None
    except PermissionError:
        raise Denied(f"{path} may not be read") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    _check_size(len(data))
    return data


def _from_standard_input() -> bytes:
    if sys.stdin.isatty():
        raise Refused(
            "nothing to look at: name a file or the address of an object, or send its bytes, or "
            "their hexadecimal digits, to standard input"
        )
    check_input()
    data = sys.stdin.buffer.read(READ_MAX_BYTES + 1)
    _check_size(len(data))
    if not data:
        raise Refused("nothing came through standard input: look at what was to send it")
    digits = b"".join(data.split()).removeprefix(b"0x")
    if not digits or not _HEX.fullmatch(digits):
        return data
    if len(digits) % 2:
        raise Refused(f"{len(digits):,} hexadecimal digits are not whole bytes: one is missing")
    return bytes.fromhex(digits.decode("ascii"))


def _check_size(size_bytes: int) -> None:
    if size_bytes > READ_MAX_BYTES:
        raise LimitExceeded(
            f"{size_bytes:,} bytes or more: no object of the buffer is larger than "
            f"{READ_MAX_BYTES:,}"
        )
