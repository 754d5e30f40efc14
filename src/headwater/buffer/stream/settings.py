"""Settings of a stream: how they are spelled, and which of them may change."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headwater.buffer.stream.config import UNLIMITED, StreamConfig
from headwater.core.errors import AlreadyExists, Refused

if TYPE_CHECKING:
    import pyarrow as pa


# Settings of a stream as people write them: Headwater's names or Kafka's, numbers or words.
#
# `parse_settings({"retention.ms": "7d", "compression.type": "zstd"})` gives the fields of
# `StreamConfig` that were named, and nothing else. A name that is not known is refused with the
# nearest one that is; a setting of Kafka's that has no meaning here, with the reason.


_SPELLINGS: Final[dict[str, str]] = {
    "num.partitions": "partitions",
    "retention": "retention_ms",
    "compression.type": "compression",
    "linger": "linger_ms",
    "batch.size": "batch_bytes",
    "gc.grace": "gc_grace_ms",
}
"""What does not become a name of ours by writing "_" for "."."""

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
_TIME_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "days": 86_400_000,
    "w": 7 * 86_400_000,
}
_SIZE_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT: Final = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_BARE: Final = re.compile(r"[0-9][0-9_,]*(?:\.[0-9]+)?")
_UNLIMITED_WORDS: Final = ("-1", "forever", "for ever", "infinite", "unlimited")


def parse_settings(settings: Mapping[str, object]) -> dict[str, Any]:
    """The fields of `StreamConfig` that these settings name, with their values."""
    parsed: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, value in settings.items():
        field = _field_of(name, value)
        if field is None:
            continue
        if field in parsed:
            raise Refused(f"{spelled[field]} and {name} are the same setting: give one of them")
        if name == "retention":
            _check_unit(name, value)
        parsed[field], spelled[field] = _PARSERS[field](name, value), name
    return parsed


def parse_duration_ms(name: str, value: object) -> int:
    """Milliseconds from a number of them, or from text such as 7d, 12h, 500 ms."""
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    return _amount(name, value, _TIME_MS, "ms", "7d, 12h, 30min, 10s or 500ms")


def parse_size_bytes(name: str, value: object) -> int:
    """Bytes from a number of them, or from text such as 8MiB."""
    return _amount(name, value, _SIZE_BYTES, "b", "8MiB, 64KiB or 1GB")


def _field_of(name: str, value: object) -> str | None:
    """The field a setting stands for; None for one that asks for what is so anyway."""
    if name == "cleanup.policy":
        if value == "delete":
            return None
        raise Refused(
            f"cleanup.policy={value}: streams are not compacted; records go when their retention "
            "is over (cleanup.policy=delete), and a job on Spark does what compaction is for"
        )
    if name in _MEANINGLESS:
        raise Refused(f"{name} means nothing here: {_MEANINGLESS[name]}")
    field = _SPELLINGS.get(name) or name.replace(".", "_").replace("-", "_")
    if field in _PARSERS:
        return field
    known = [*_PARSERS, *_SPELLINGS, *(field.replace("_", ".") for field in _PARSERS)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(_PARSERS))}"
    raise Refused(f"{name} is not a setting of a stream; {hint}")


def _check_unit(name: str, value: object) -> None:
    """A number of what? A name that ends in its unit says so; this one leaves it to the value."""
    text = str(value).strip()
    if text != "0" and not isinstance(value, bool) and _BARE.fullmatch(text):
        raise Refused(f"{name}={text}: name a unit, as in {text}d, {text}h or {text}ms")


def _duration_or_unlimited(name: str, value: object) -> int:
    return UNLIMITED if _is_unlimited(value) else parse_duration_ms(name, value)


def _size_or_unlimited(name: str, value: object) -> int:
    return UNLIMITED if _is_unlimited(value) else parse_size_bytes(name, value)


def _is_unlimited(value: object) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _UNLIMITED_WORDS
    return value is None or (value == UNLIMITED and not isinstance(value, bool))


def _or_default(parse: Callable[[str, object], int]) -> Callable[[str, object], int | None]:
    def parse_or_default(name: str, value: object) -> int | None:
        if value is None or (isinstance(value, str) and value.strip().lower() == "default"):
            return None
        return parse(name, value)

    return parse_or_default


def _number(name: str, value: object) -> int:
    return _amount(name, value, {"": 1}, "", "a whole number")


def _amount(name: str, value: object, units: dict[str, int], bare: str, such_as: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        found = _AMOUNT.fullmatch(value.strip())
        unit = units.get((found[2] or bare).lower()) if found else None
        if found and unit is not None:
            from fractions import Fraction

            total = Fraction(found[1].replace(",", "").replace("_", "")) * unit
            if total.denominator == 1:
                return int(total)
    raise Refused(f"{name}={value}: expected {such_as}")


def _one_of(*choices: str) -> Callable[[str, object], str]:
    def choose(name: str, value: object) -> str:
        text = str(value).strip().lower()
        if text not in choices:
            raise Refused(f"{name}={value}: it is {' or '.join(choices)}")
        return text

    return choose


def _compression(name: str, value: object) -> str:
    text = str(value).strip().lower()
    if text == "producer":
        raise Refused(f"{name}=producer: the stream says how it is compressed: none, zstd or lz4")
    if text not in _COMPRESSIONS:
        raise Refused(f"{name}={value}: batches are compressed with none, zstd or lz4")
    return _COMPRESSIONS[text]


def _v1_reading(name: str, value: object) -> str | msgspec.UnsetType:
    chosen = _one_of("strict", "lenient")(name, value)
    return chosen if chosen == "lenient" else msgspec.UNSET


_PARSERS: Final[dict[str, Callable[[str, object], Any]]] = {
    "partitions": _number,
    "format": _one_of("native", "v1"),
    "compression": _compression,
    "retention_ms": _duration_or_unlimited,
    "retention_bytes": _size_or_unlimited,
    "gc_grace_ms": parse_duration_ms,
    "segment_bytes": parse_size_bytes,
    "segment_ms": parse_duration_ms,
    "consumer": _one_of("query", "nodes"),
    "linger_ms": _or_default(parse_duration_ms),
    "batch_bytes": _or_default(parse_size_bytes),
    "v1_reading": _v1_reading,
}


# What may be asked of a stream that exists, or existed.


class RetypeNeeded(Exception):
    """Types that were inferred are to be replaced by others, which are not wider."""

    def __init__(self, schema: pa.Schema, columns: list[pa.Field]) -> None:
        super().__init__(", ".join(field.name for field in columns))
        self.schema = schema
        """With the types in their place."""
        self.columns = columns
        """Those that every retained value has to fit."""


def check_same_settings(
    now: StreamConfig, given: Mapping[str, Any], declared: pa.Schema | None
) -> StreamConfig:
    """The stream itself, if it is as these settings ask; those not given may be anything."""
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
    """Refuse what a stream cannot change in its life."""
    asked = given.get("format", now.format)
    if asked != now.format:
        raise Refused(
            f"stream {now.name!r} is in the {now.format} format for its life: create another in "
            f"{asked}, and copy"
        )
    partitions = given.get("partitions", now.partitions)
    if partitions < now.partitions:
        raise Refused(
            f"stream {now.name!r} has {now.partitions} partitions, and cannot have {partitions}: "
            "records stay where they are, so partitions are added and never removed"
        )


def check_cleaned(before: StreamConfig | None) -> None:
    """Refuse to build where the objects of a deleted v1 stream may still be.

    The published layout has no place for an id: what is left of the old stream would be part of
    the next one, and whoever is still deleting it would delete that.
    """
    if before is not None and before.format == "v1" and not before.cleaned:
        raise Refused(
            f"a stream {before.name!r} in the published v1 format was deleted here, and not all of "
            "its objects are gone: delete it once more, or take another name"
        )


def schema_change(now: StreamConfig, declared: pa.Schema, added_ms: int) -> dict[str, Any]:
    """What changes when `declared` is the latest schema; nothing if it is that already."""
    from headwater.buffer.stream.schema import arrow_schema, evolve_schema, schema_version

    if now.is_opaque:
        raise Refused(
            f"stream {now.name!r} carries opaque values, for its life: declare the schema of "
            "another stream, and write columns to that one"
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
    """What stays of a stream: which objects were its own, so that they can be removed."""
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
