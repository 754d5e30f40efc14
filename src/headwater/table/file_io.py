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
"""A file up to this size is fetched whole; of a larger one, the ranges that are read."""
READ_BYTES: Final = MIB


class StoreFileIO(FileIO):
    """pyiceberg's `FileIO` for the files below one root."""

    def __init__(
        self,
        properties: Properties = EMPTY_DICT,
        *,
        root: FileRoot | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__(properties)
        self.root = root or FileRoot.at(properties[WAREHOUSE])
        self._store = store

    @property
    def store(self) -> Store:
        return self._store or self.root.store()

    def new_input(self, location: str) -> InputFile:
        return _StoredFile(self, location)

    def new_output(self, location: str) -> OutputFile:
        return _StoredFile(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file; it is no error if there is none."""
        name = location if isinstance(location, str) else location.location
        portal.shared().call(self.store.delete(self.root.key(name)))


class _StoredFile(InputFile, OutputFile):
    """One file. Its name contains a UUID, so it is written once, by one writer."""

    def __init__(self, files: StoreFileIO, location: str) -> None:
        super().__init__(location)
        self._files = files
        self._key = files.root.key(location)
        self._size_bytes: int | None = None

    def __len__(self) -> int:
        if self._size_bytes is None:
            try:
                meta = portal.shared().call(self._files.store.head(self._key))
            except NotFound as error:
                raise FileNotFoundError(self.location) from error
            except Denied as error:
                raise PermissionError(str(error)) from error
            self._size_bytes = meta.size_bytes
        return self._size_bytes

    def exists(self) -> bool:
        try:
            len(self)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        """Open the bytes of the file; a small file is fetched whole."""
        if len(self) > WHOLE_BYTES_MAX:
            reader: Any = io.BufferedReader(
                _Ranges(self._files.store, self._key, len(self)), READ_BYTES
            )
            return reader  # type: ignore[no-any-return]
        return io.BytesIO(portal.shared().call(self._files.store.get(self._key)).data)

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        """Return a stream that stores its bytes when it is closed."""
        return _Upload(self)

    def store(self, data: bytes) -> None:
        portal.shared().call(self._files.store.put(self._key, data))
        self._size_bytes = len(data)


class _Upload(io.BytesIO):
    def __init__(self, file: _StoredFile) -> None:
        super().__init__()
        self._file = file

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            super().close()  # an incomplete file is not stored
            return
        self.close()

    def close(self) -> None:
        if not self.closed:
            self._file.store(self.getvalue())
        super().close()

    def __del__(self) -> None:
        # A stream that was never closed is incomplete. The garbage collector would close it and so
        # store half a file.
        super().close()


class _Ranges(io.RawIOBase):
    """The bytes of an object, fetched where they are read."""

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
