"""What a replica keeps beside its copies: the fence, which copy counts, and that it diverged.

    replica.json   {"crc32":"…","kept":{"copy":1,"diverged_lsn":null,"format":2,"kind":"log",…}}

Always holds:

- a term is kept before anything of it is applied or acknowledged, so that a leader that was
  overtaken is refused after a restart as well;
- one rename moves from one copy to the next: whoever opens the folder finds the old one or the new
  one, and both whole;
- a file that cannot be read, or is gone from beside a copy, is an error: to begin with term 0 would
  lift the fence.
"""

from __future__ import annotations

import posixpath
import zlib
from typing import Final

import msgspec

from headwater.core.disk import Disk
from headwater.core.errors import (
    Corrupt,
    DiskFailed,
    HeadwaterError,
    NotFound,
    NotSupported,
    Refused,
)
from headwater.log.spool.folder import SEGMENT, Folder

FORMAT: Final = 2
_READ: Final = (1, FORMAT)
"""Format 1 had no kind."""
NAME: Final = "replica.json"


class Kept(msgspec.Struct, frozen=True):
    """What survives a restart."""

    term: int = 0
    """Answers of leaders with a lower one are refused."""
    copy: int = 1
    """The number of the copy that counts."""
    diverged_lsn: int | None = None
    """The first LSN under which that copy holds another record than the log."""
    format: int = FORMAT
    kind: str = ""
    """What the copies are, in the word of their `Targets`; empty where nobody has said yet."""

    def of_kind(self, kind: str, path: str) -> Kept:
        """The same, for targets of this kind; `Refused` if the copies are others."""
        if self.kind not in ("", kind):
            raise Refused(
                f"the replica in {path} is of kind {self.kind!r}, and not {kind!r}: open it as "
                "what it is, or give this one a folder of its own"
            )
        return msgspec.structs.replace(self, kind=kind, format=FORMAT)


class _File(msgspec.Struct, frozen=True):
    crc32: str
    kept: msgspec.Raw


class KeptFile:
    """The file, and its folder. Blocks."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.folder = Folder(disk, path)

    def copy_path(self, number: int) -> str:
        """The folder of a copy."""
        return posixpath.join(self.folder.path, f"copy-{number}")

    def copy_numbers(self) -> list[int]:
        """The copies that have a folder."""
        names = (name for name, is_dir in self.folder.disk.list_dir(self.folder.path) if is_dir)
        parts = (name.partition("-") for name in names)
        return sorted(int(n) for word, _, n in parts if word == "copy" and n.isdigit())

    def read(self) -> Kept | None:
        """What is kept; None if nothing ever was."""
        path = self.folder.file(NAME)
        try:
            with self.folder.disk.open(path) as file:
                data = file.read_at(0, file.stat().size_bytes)
        except NotFound:
            if any(map(self._holds_files, self.copy_numbers())):
                raise Corrupt(f"{path} is gone, and copies are there. {_ADVICE}") from None
            return None
        return decode(data, path)

    def refuse_log(self) -> None:
        """Raise `Refused` if the folder is that of a log."""
        names = self.folder.disk.list_dir(self.folder.path)
        if any(not is_dir and SEGMENT.fullmatch(name) for name, is_dir in names):
            raise Refused(
                f"{self.folder.path} holds a log itself, and a replica would never read it: give "
                "the replica a folder of its own, and keep the log until that has caught up"
            )

    def _holds_files(self, number: int) -> bool:
        names = self.folder.disk.list_dir(self.copy_path(number))
        return any(not is_dir for _, is_dir in names)

    def write(self, kept: Kept) -> None:
        """Return once this is what a restart finds.

        `DiskFailed` if that is not known: the disk has to be read again. After any other error a
        restart finds what it would have found before.
        """
        path = self.folder.file(NAME)
        with self.folder.replacing(path) as file:
            file.append(encode(kept))
            file.sync()
        try:
            self.folder.disk.sync_dir(self.folder.path)
        except HeadwaterError as error:
            raise DiskFailed(
                f"{path} was replaced, and it is not known for how long: {error}"
            ) from error


def encode(kept: Kept) -> bytes:
    """The bytes of the file."""
    body = msgspec.json.encode(kept, order="sorted")
    return msgspec.json.encode(_File(f"{zlib.crc32(body):08x}", msgspec.Raw(body))) + b"\n"


def decode(data: bytes, path: str = NAME) -> Kept:
    """What such bytes say; `Corrupt` if they are not what was written."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if file.crc32 != f"{zlib.crc32(file.kept):08x}":
            raise Corrupt(f"{path} fails its checksum. {_ADVICE}")
        kept = msgspec.json.decode(file.kept, type=Kept)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path} is not what a replica writes: {error}. {_ADVICE}") from error
    if kept.format not in _READ:
        raise NotSupported(
            f"{path} is of format {kept.format}; this version reads formats up to {FORMAT}. "
            "Upgrade Headwater."
        )
    return kept


_ADVICE: Final = (
    "Without it nobody can say which leader is too old for this replica: remove the whole folder, "
    "and let the replica begin anew"
)
