"""Settings of a stream: how they are spelled, and which of them may change.

`parse_settings({"retention.ms": "7d", "compression.type": "zstd"})` accepts Headwater's names and
Kafka's, numbers and text, and returns the fields of `StreamConfig` that were given. An unknown name
is refused with the closest known one; a Kafka setting without a meaning here, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headwater.buffer.stream.config import UNLIMITED, StreamConfig
from headwater.core.errors import AlreadyExists, Refused
from headwater.core.settings import (
    SettingNames,
    is_forever,
    parse_choice,
    parse_duration_ms,
    parse_size_bytes,
    parse_whole_number,
)

if TYPE_CHECKING:
    import pyarrow as pa

_DURABLE: Final = "what is accepted is durable; linger_ms and batch_bytes are for producers"
_COMPACTED: Final = "streams are not compacted; a job on Spark does what compaction is for"
_REPLICAS: Final = "there are no replicas to count: the object store keeps what it accepts"
_MEANINGLESS: Final[dict[str, str]] = {
    "acks": "a record is accepted once it is durable in the object store; there is no weaker level",
    "delete.retention.ms": _COMPACTED,
    "enable.idempotence": "every append is exactly once; that cannot be switched off",
    "file.delete.delay.ms": "use gc_grace_ms, the time before the collector deletes",
    "flush.messages": _DURABLE,
    "flush.ms": _DURABLE,
    "local.retention.bytes": "there are no brokers' disks; use retention_bytes",
    "local.retention.ms": "there are no brokers' disks; use retention_ms",
    "max.compaction.lag.ms": _COMPACTED,
    "max.message.bytes": "every stream takes records of up to RECORD_MAX_BYTES (16 MiB)",
    "message.timestamp.type": "a record has its own timestamp if it is given one, else that of its "
    "ingestion",
    "min.cleanable.dirty.ratio": _COMPACTED,
    "min.compaction.lag.ms": _COMPACTED,
    "min.insync.replicas": _REPLICAS,
    "preallocate": "objects are not files; nothing is allocated before it is written",
    "remote.storage.enable": "everything is in object storage; there is nothing else",
    "replication.factor": _REPLICAS,
    "unclean.leader.election.enable": "there is no election: the object store says who may write",
}
_COMPRESSIONS: Final = {"none": "none", "uncompressed": "none", "zstd": "zstd", "lz4": "lz4"}
_BARE: Final = re.compile(r"[0-9][0-9_,]*(?:\.[0-9]+)?")


def parse_settings(settings: Mapping[str, object]) -> dict[str, Any]:
    """The fields of `StreamConfig` that these settings name, with their values."""
    given = {name: value for name, value in settings.items() if not _is_default(name, value)}
    parsed: dict[str, Any] = {}
    for field, (name, value) in _NAMES.resolve(given).items():
        if name == "retention":
            _check_unit(name, value)
        parsed[field] = _PARSERS[field](name, value)
    return parsed


def _is_default(name: str, value: object) -> bool:
    """Whether this asks for what always holds, as cleanup.policy=delete does."""
    if name != "cleanup.policy":
        return False
    if value != "delete":
        raise Refused(
            f"cleanup.policy={value}: streams are not compacted. Retention deletes records "
            "(cleanup.policy=delete); a Spark job does what compaction is for"
        )
    return True


def _check_unit(name: str, value: object) -> None:
    """A name that does not end in its unit needs one in the value."""
    text = str(value).strip()
    if text != "0" and not isinstance(value, bool) and _BARE.fullmatch(text):
        raise Refused(f"{name}={text}: name a unit, as in {text}d, {text}h or {text}ms")


def _or_unlimited(parse: Callable[[str, object], int]) -> Callable[[str, object], int]:
    return lambda name, value: UNLIMITED if is_forever(value) else parse(name, value)


def _or_default(parse: Callable[[str, object], int]) -> Callable[[str, object], int | None]:
    def parse_or_default(name: str, value: object) -> int | None:
        if value is None or (isinstance(value, str) and value.strip().lower() == "default"):
            return None
        return parse(name, value)

    return parse_or_default


def _one_of(*choices: str) -> Callable[[str, object], str]:
    return lambda name, value: parse_choice(name, value, choices)


def _compression(name: str, value: object) -> str:
    text = str(value).strip().lower()
    if text == "producer":
        raise Refused(f"{name}=producer: the stream sets its compression: none, zstd or lz4")
    if text not in _COMPRESSIONS:
        raise Refused(f"{name}={value}: batches are compressed with none, zstd or lz4")
    return _COMPRESSIONS[text]


def _v1_reading(name: str, value: object) -> str | msgspec.UnsetType:
    chosen = parse_choice(name, value, ("strict", "lenient"))
    return chosen if chosen == "lenient" else msgspec.UNSET


_PARSERS: Final[dict[str, Callable[[str, object], Any]]] = {
    "partitions": parse_whole_number,
    "format": _one_of("native", "v1"),
    "compression": _compression,
    "retention_ms": _or_unlimited(parse_duration_ms),
    "retention_bytes": _or_unlimited(parse_size_bytes),
    "gc_grace_ms": parse_duration_ms,
    "segment_bytes": parse_size_bytes,
    "segment_ms": parse_duration_ms,
    "consumer": _one_of("query", "nodes"),
    "linger_ms": _or_default(parse_duration_ms),
    "batch_bytes": _or_default(parse_size_bytes),
    "v1_reading": _v1_reading,
}
_NAMES: Final = SettingNames(
    "a stream",
    _PARSERS,
    aliases={
        "num.partitions": "partitions",
        "retention": "retention_ms",
        "compression.type": "compression",
        "linger": "linger_ms",
        "batch.size": "batch_bytes",
        "gc.grace": "gc_grace_ms",
    },
    refused=_MEANINGLESS,
)


class RetypeNeeded(Exception):
    """Inferred types are to be replaced by types that are not wider."""

    def __init__(self, schema: pa.Schema, columns: list[pa.Field]) -> None:
        super().__init__(", ".join(field.name for field in columns))
        self.schema = schema
        """The schema with the new types."""
        self.columns = columns
        """The columns whose retained values must all fit the new type."""


def check_same_settings(
    now: StreamConfig, given: Mapping[str, Any], declared: pa.Schema | None
) -> StreamConfig:
    """The stream's config, if it has all of the given settings."""
    wrong = [
        (name, f"is {getattr(now, name)}, and {value} was asked for")
        for name, value in given.items()
        if name not in ("schemas", "shape") and getattr(now, name) != value
    ]
    if declared is not None and (now.is_inferred or not _is_latest(now, declared)):
        wrong.append(("schema", "another one is declared" if now.schemas else "none is declared"))
    if wrong:
        from headwater.buffer.stream.schema import difference

        raise AlreadyExists(
            f"stream {now.name!r} exists, with other settings:{difference(wrong)}", current=now
        )
    return now


def check_alterable(now: StreamConfig, given: Mapping[str, Any]) -> None:
    """Refuse changes that a stream does not allow."""
    wanted = given.get("format", now.format)
    if wanted != now.format:
        raise Refused(
            f"stream {now.name!r} is in the {now.format} format, which never changes: create "
            f"another stream in {wanted}, and copy"
        )
    partitions = given.get("partitions", now.partitions)
    if partitions < now.partitions:
        raise Refused(
            f"stream {now.name!r} has {now.partitions} partitions, and cannot have {partitions}: "
            "records stay where they are, so partitions are added and never removed"
        )


def check_cleaned(before: StreamConfig | None) -> None:
    """Refuse to create a stream where objects of a deleted v1 stream may be left.

    The v1 layout has no place for a stream id: leftovers of the old stream would become part of the
    new one, and a deletion that is still running would delete the new one's objects.
    """
    if before is not None and before.format == "v1" and not before.cleaned:
        raise Refused(
            f"a stream {before.name!r} in the published v1 format was deleted here, and some of "
            "its objects are left: delete it again, or choose another name"
        )


def schema_change(now: StreamConfig, declared: pa.Schema, added_ms: int) -> dict[str, Any]:
    """The fields that change when `declared` becomes the latest schema; none if it is already."""
    from headwater.buffer.stream.schema import arrow_schema, evolve_schema, schema_version

    if now.is_opaque:
        raise Refused(
            f"stream {now.name!r} carries opaque values, which never changes: declare the schema "
            "of another stream, and write columns to that one"
        )
    number = now.next_schema_version
    if not now.schemas:
        first = schema_version(number, declared, added_ms=added_ms)
        return {"shape": "typed", "schemas": [first]}
    latest = now.schemas[-1]
    schema = evolve_schema(now.name, latest, declared)
    if schema is None and not now.is_inferred:
        return {}
    schema = arrow_schema(latest) if schema is None else schema
    return {"schemas": [*now.schemas, schema_version(number, schema, added_ms=added_ms)]}


def tombstone(now: StreamConfig, *, deleted_ms: int) -> StreamConfig:
    """The config of a deleted stream, which still identifies its objects for removal."""
    if not now.is_live:
        return now
    return msgspec.structs.replace(now, state="deleted", deleted_ms=deleted_ms, cleaned=False)


def _is_latest(now: StreamConfig, declared: pa.Schema) -> bool:
    if not now.schemas:
        return False
    from headwater.buffer.stream.schema import evolve_schema

    try:
        return evolve_schema(now.name, now.schemas[-1], declared) is None
    except Refused:
        return False
