"""A change record, and its published JSON form.

    {"collection":"users","entity_bytes_hex":"010203","kind":"row","lsn":7,
     "metadata":{"role":"admin"},"operation":"update","rid":42,"term":3,"timestamp":1234}

Compact, keys sorted, bytes as lowercase hexadecimal. `entity_bytes_hex`, `metadata` and
`refresh_records_hex` stand there only when they have a value, and so do the three that the
published form does not know: `key_hex`, `headers` (pairs of text and hexadecimal), and
`metadata_hex` for metadata that is not JSON as it would be written here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from headwater.buffer.records import Operation
from headwater.core.errors import Corrupt
from headwater.log.record.columns import DEFAULT_KIND

DEFAULT_TERM: Final = 1
Headers = tuple[tuple[str, bytes | None], ...]
_OPERATIONS: Final = {operation.name.lower(): operation for operation in Operation}


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change, as the log carries it."""

    lsn: int
    term: int = DEFAULT_TERM
    timestamp_ms: int = 0
    operation: Operation = Operation.INSERT
    collection: str = ""
    rid: int = 0
    key: bytes | None = None
    kind: str = DEFAULT_KIND
    entity_bytes: bytes | None = None
    metadata: bytes | None = None
    headers: Headers = ()
    refresh_records: tuple[bytes, ...] | None = None

    def to_json(self) -> bytes:
        """The published form."""
        found: dict[str, Any] = {
            "collection": self.collection,
            "kind": self.kind,
            "lsn": self.lsn,
            "operation": self.operation.name.lower(),
            "rid": self.rid,
            "term": self.term,
            "timestamp": self.timestamp_ms,
        }
        if self.entity_bytes is not None:
            found["entity_bytes_hex"] = self.entity_bytes.hex()
        if self.key is not None:
            found["key_hex"] = self.key.hex()
        if self.headers:
            found["headers"] = [
                [name, None if value is None else value.hex()] for name, value in self.headers
            ]
        if self.refresh_records is not None:
            found["refresh_records_hex"] = [record.hex() for record in self.refresh_records]
        if self.metadata is not None:
            found |= _metadata_to_json(self.metadata)
        return compact_json(found)

    @classmethod
    def from_json(cls, data: bytes | memoryview) -> ChangeRecord:
        """Read the published form, with its defaults and aliases."""
        try:
            found = json.loads(bytes(data))
            return cls(
                lsn=_whole(found.get("lsn", 0)),
                term=_whole(found.get("term", DEFAULT_TERM)),
                timestamp_ms=_whole(found.get("timestamp", 0)),
                operation=_OPERATIONS[found["operation"]],
                collection=_text(found.get("collection", "")),
                rid=_whole(found.get("rid", found.get("entity_id", 0))),
                key=_hex(found.get("key_hex")),
                kind=_text(found.get("kind", found.get("entity_kind", DEFAULT_KIND))),
                entity_bytes=_hex(found.get("entity_bytes_hex")),
                metadata=_metadata_from_json(found),
                headers=tuple((_text(k), _hex(v)) for k, v in found.get("headers", ())),
                refresh_records=_hexes(found.get("refresh_records_hex")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupt(f"not a change record in JSON: {error!r}") from error


def compact_json(value: Any) -> bytes:
    """JSON without blanks, its keys sorted."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _metadata_to_json(metadata: bytes) -> dict[str, Any]:
    try:
        value = json.loads(metadata)
        # Only where reading it back gives the same bytes: the form must not change a record.
        if value is not None and compact_json(value) == metadata:
            return {"metadata": value}
    except (ValueError, RecursionError):
        pass
    return {"metadata_hex": metadata.hex()}


def _metadata_from_json(found: dict[str, Any]) -> bytes | None:
    if found.get("metadata") is not None:
        return compact_json(found["metadata"])
    return _hex(found.get("metadata_hex"))


def _hexes(values: list[str] | None) -> tuple[bytes, ...] | None:
    return None if values is None else tuple(bytes.fromhex(_text(value)) for value in values)


def _hex(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(_text(value))


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
