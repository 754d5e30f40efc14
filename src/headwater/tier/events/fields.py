"""Kafka's flexible encoding: big-endian numbers, varints, compact strings, tagged fields.

No length or count is believed before it is compared with the bytes that are there.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from headwater.core.errors import Corrupt

_VARINT_BITS: Final = 32


def uvarint(value: int) -> bytes:
    """An unsigned number, seven bits to a byte, the low ones first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def compact(data: bytes | None) -> bytes:
    """Bytes or the bytes of a string after their length and one; nothing at all is 0."""
    return b"\0" if data is None else uvarint(len(data) + 1) + data


class FieldReader:
    """Reads field after field; what is not there or makes no sense is `Corrupt`, with its place."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        """The offset of what is read next."""
        return self._at

    def left(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self._at

    def fixed(self, layout: Struct) -> tuple[Any, ...]:
        """Fields of a fixed size."""
        at = self._at
        if layout.size > len(self._data) - at:
            raise self.corrupt(f"{layout.size} bytes are needed, and {self.left()} are left")
        self._at = at + layout.size
        return layout.unpack_from(self._data, at)

    def uvarint(self) -> int:
        """An unsigned number of up to 32 bits."""
        data, began = self._data, self._at
        # Hardly any has more than seven bits.
        if began < len(data) and data[began] < 0x80:
            self._at = began + 1
            return data[began]
        value = shift = 0
        for at in range(began, min(began + 5, len(data))):
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> _VARINT_BITS:
                    break
                self._at = at + 1
                return value
            shift += 7
        raise self.corrupt("a varint of up to 32 bits is needed")

    def compact(self) -> bytes | None:
        """Bytes with their length; None if it says there are none at all."""
        began = self._at
        length = self.uvarint() - 1
        if length < 0:
            return None
        if length > self.left():
            raise self.corrupt(f"{length:,} bytes are announced, and {self.left()} are left", began)
        self._at += length
        return self._data[self._at - length : self._at]

    def count(self, least_bytes: int) -> int:
        """How many elements an array has, each of at least so many bytes."""
        began = self._at
        elements = self.uvarint() - 1
        if elements < 0:
            raise self.corrupt("an array is missing", began)
        if elements * least_bytes > self.left():
            raise self.corrupt(f"{elements:,} elements do not fit into what is left", began)
        return elements

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that end every struct."""
        at = self._at
        if at < len(self._data) and self._data[at] == 0:
            self._at = at + 1
            return {}
        found: dict[int, bytes] = {}
        elements = self.uvarint()
        if elements * 2 > self.left():
            raise self.corrupt(f"{elements:,} tagged fields do not fit into what is left", at)
        for _ in range(elements):
            tag, size = self.uvarint(), self.uvarint()
            if size > self.left():
                raise self.corrupt(f"tag {tag} has {size:,} bytes, and {self.left()} are left")
            if tag in found:
                raise self.corrupt(f"tag {tag} comes twice")
            found[tag] = self._data[self._at : self._at + size]
            self._at += size
        return found

    def corrupt(self, why: str, at: int | None = None) -> Corrupt:
        """That the bytes are damaged, and where."""
        return Corrupt(f"metadata event, offset {self._at if at is None else at}: {why}")
