"""pyiceberg's file access, through a store.

Every store address works, credentials stay outside of table metadata, and a file is durable once it
is closed.
"""

from __future__ import annotations

import io
from typing import Any, Final

from pyiceberg.io import WAREHOUSE, FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties

from headwater.core import portal
from headwater.core.errors import Denied, NotFound
from headwater.core.limits import MIB
from headwater.store import ByteRange, Store
from headwater.store.locations import FileRoot

WHOLE_BYTES_MAX: Final = 8 * MIB
"""A file up to this size is fetched at once; of a larger one the ranges that are read."""
READ_BYTES: Final = MIB


class StoreFileIO(FileIO):
    """Files below one place."""

    def __init__(
        self,
        properties: Properties = EMPTY_DICT,
        *,
        place: FileRoot | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__(properties)
        self.place = place or FileRoot.at(properties[WAREHOUSE])
        self._store = store

    @property
    def store(self) -> Store:
        """The store that the files stand in."""
        return self._store or self.place.store()

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return _StoredFile(self, location)

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        return _StoredFile(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; one that is not there is no error."""
        name = location if isinstance(location, str) else location.location
        portal.shared().call(self.store.delete(self.place.key(name)))


class _StoredFile(InputFile, OutputFile):
    """One file. Names of Iceberg's files carry a UUID: each is written once, by one writer."""

    def __init__(self, files: StoreFileIO, location: str) -> None:
        super().__init__(location)
        self._files = files
        self._key = files.place.key(location)
        self._size_bytes: int | None = None

    def __len__(self) -> int:
        if self._size_bytes is None:
            try:
                found = portal.shared().call(self._files.store.head(self._key))
            except NotFound as error:
                raise FileNotFoundError(self.location) from error
            except Denied as error:
                raise PermissionError(str(error)) from error
            self._size_bytes = found.size_bytes
        return self._size_bytes

    def exists(self) -> bool:
        """Whether it is there."""
        try:
            len(self)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        """Its bytes, at once if they are few."""
        if len(self) > WHOLE_BYTES_MAX:
            reader: Any = io.BufferedReader(
                _Ranges(self._files.store, self._key, len(self)), READ_BYTES
            )
            return reader  # type: ignore[no-any-return]
        found = portal.shared().call(self._files.store.get(self._key))
        return io.BytesIO(found.data)

    def to_input_file(self) -> InputFile:
        """The same file, to read."""
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        """Takes bytes, and stores them when it is closed."""
        return _Upload(self)

    def store(self, data: bytes) -> None:
        """Write it whole."""
        portal.shared().call(self._files.store.put(self._key, data))
        self._size_bytes = len(data)


class _Upload(io.BytesIO):
    def __init__(self, file: _StoredFile) -> None:
        super().__init__()
        self._file = file

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            super().close()  # what was cut short is no file
            return
        self.close()

    def close(self) -> None:
        if not self.closed:
            self._file.store(self.getvalue())
        super().close()

    def __del__(self) -> None:
        # Dropped and never closed, it is no whole file. Python would close it, wherever garbage is
        # collected, and store the half of it.
        super().close()


class _Ranges(io.RawIOBase):
    """An object's bytes, asked for where they are read."""

    def __init__(self, store: Store, key: str, size_bytes: int) -> None:
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size_bytes}[whence]
        self._offset = max(0, start + offset)
        return self._offset

    def readinto(self, buffer: Any) -> int:
        end = min(self._offset + len(buffer), self._size_bytes)
        if end <= self._offset:
            return 0
        part = ByteRange(self._offset, end)
        data = portal.shared().call(self._store.get(self._key, part)).data
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)
