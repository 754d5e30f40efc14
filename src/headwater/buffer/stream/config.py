"""The content of `stream.json`, the settings that users give, and the register that has it.

`parse_settings({"retention.ms": "7d", "compression.type": "zstd"})` accepts Headwater's names and
Kafka's, numbers and text. An unknown name is refused with the closest known one; a Kafka setting
without a meaning here, with the reason.

Always holds:

- every field is written, even with its default value, so that a later default does not change
  existing streams. `v1_reading` is the exception: without it, reading is strict;
- the versions are checked before the rest: the fields of another version may not fit here,
  and "upgrade" is a better answer than "damaged";
- a stream has columns exactly if its shape is `typed`;
- the id is a UUID. It is part of the paths below which objects are deleted.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from headwater.buffer.layout import check_group_name, check_stream_name, stream_key
from headwater.core import limits, runtime
from headwater.core.errors import Conflict, Corrupt, NotFound, NotSupported, Refused
from headwater.core.settings import (
    SettingNames,
    is_forever,
    parse_choice,
    parse_duration_ms,
    parse_size_bytes,
    parse_whole_number,
)
from headwater.store import Register, Store

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION: Final = 3
"""The stream format that this software reads and writes."""
RELEASE: Final = "0.1.0"
"""The first release of Headwater that reads and writes FORMAT_VERSION."""

DAY_MS: Final = 86_400_000
UNLIMITED: Final = -1
PARTITIONS_MAX: Final = 1_024

# Chosen by what requests cost: see cost.py.
LINGER_MS: Final = 1_000
LINGER_LOCAL_MS: Final = 100
BATCH_BYTES: Final = 8 * limits.MIB

Format = Literal["native", "v1"]
ConsumerKind = Literal["query", "nodes"]
Origin = Literal["declared", "inferred"]

_UUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


class Column(msgspec.Struct, frozen=True):
    """A column of a schema; `type` as `types.type_text` writes it."""

    name: str
    type: str
    nullable: bool


class SchemaVersion(msgspec.Struct, frozen=True):
    """A version of a stream's columns."""

    version: int
    added_ms: int
    origin: Origin
    """`declared` by a user: producers add no columns; or `inferred` from what was produced."""
    columns: list[Column]


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the register `stream.json`."""

    id: Annotated[str, msgspec.Meta(pattern=_UUID)]
    name: str
    reader_version: int = FORMAT_VERSION
    """The format version that a reader must support."""
    writer_version: int = FORMAT_VERSION
    """The format version that producers, and writers of this register, must support."""
    needs_release: str = RELEASE
    """The release of Headwater that supports both."""
    state: Literal["live", "deleted"] = "live"
    created_ms: int
    deleted_ms: int | None = None
    cleaned: bool = False
    """Whether all objects of a deleted stream were removed."""
    partitions: Annotated[int, msgspec.Meta(ge=1)] = 1
    partitions_ready: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The queues of the partitions below this one exist, and are never created again."""
    format: Format = "native"
    compression: Literal["none", "zstd", "lz4"] = "none"
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    required_group: str | None = None
    """Records stay until this group has processed them, however old they are."""
    policy: int = 0  # raised by each change of what is kept
    gc_grace_ms: int = 600_000
    segment_bytes: int = 128 * limits.MIB
    segment_ms: int = 600_000
    consumer: ConsumerKind = "query"
    linger_ms: int | None = None
    """How long producers wait before they flush; None is LINGER_MS, locally LINGER_LOCAL_MS."""
    batch_bytes: int | None = None
    """How much producers accumulate before they flush; None is BATCH_BYTES."""
    shape: Literal["opaque", "typed"] | None = None
    """What all records of the stream carry; None before the first record with values."""
    schemas: list[SchemaVersion] = []
    """Of consecutive inferred versions, only the last is stored."""
    schema_floor: Annotated[int, msgspec.Meta(ge=0)] = 0
    """While a column's type is being replaced: the version that will hold the outcome."""
    v1_reading: Literal["lenient"] | msgspec.UnsetType = msgspec.UNSET
    """How a v1 stream is read; strictly if unset."""

    @property
    def is_lenient(self) -> bool:
        """Whether deviations from the v1 format that the reference accepts are read."""
        return self.v1_reading == "lenient"

    @property
    def is_typed(self) -> bool:
        return self.shape == "typed"

    @property
    def is_opaque(self) -> bool:
        """Whether records carry opaque values. Those of a v1 stream always do."""
        return self.shape == "opaque" or self.format == "v1"

    @property
    def is_inferred(self) -> bool:
        """Whether the columns were inferred, so that producers may add to them."""
        return bool(self.schemas) and self.schemas[-1].origin == "inferred"

    @property
    def next_schema_version(self) -> int:
        """The number of the next schema. Numbers are never used twice."""
        return max(self.schema_floor, self.schemas[-1].version if self.schemas else 0) + 1

    @property
    def is_live(self) -> bool:
        return self.state == "live"


class _FormatVersions(msgspec.Struct, frozen=True):
    reader_version: int
    writer_version: int
    needs_release: str = ""


def new_stream_id() -> str:
    """A random UUID (version 4)."""
    return str(uuid.UUID(bytes=runtime.new_token(), version=4))


def encode_config(config: StreamConfig) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(config, order="sorted"))


def decode_config(name: str, raw: msgspec.Raw, *, writing: bool) -> StreamConfig:
    """Decode a config; `NotSupported` names the release to upgrade to."""
    try:
        versions = msgspec.json.decode(raw, type=_FormatVersions)
        check_versions(name, versions, writing=writing)
        config = msgspec.json.decode(raw, type=StreamConfig)
    except msgspec.ValidationError as error:
        raise Corrupt(f"the stream.json of {name!r} cannot be decoded: {error}") from error
    if config.name != name:
        raise Corrupt(
            f"the stream.json of {name!r} is that of {config.name!r}: it was copied or renamed"
        )
    if config.is_typed != bool(config.schemas):
        columns = "columns" if config.schemas else "no columns"
        raise Corrupt(f"the stream.json of {name!r} says {config.shape}, and has {columns}")
    return config


def check_versions(name: str, needs: _FormatVersions | StreamConfig, *, writing: bool) -> None:
    """Refuse a stream that this version cannot read or, with `writing`, write."""
    if needs.reader_version < FORMAT_VERSION:
        # Not "upgrade": this stream must be deletable as a damaged one.
        raise Corrupt(
            f"stream {name!r} is in stream format {needs.reader_version}, from before the first "
            f"release, and this software has format {FORMAT_VERSION}: delete it (headwater stream "
            f"delete URL {name} --damaged), and create it again"
        )
    release = f"headwater {needs.needs_release}" if needs.needs_release else "a later headwater"
    versions = [("read", needs.reader_version), ("write", needs.writer_version)]
    for verb, version in versions if writing else versions[:1]:
        if version > FORMAT_VERSION:
            raise NotSupported(
                f"to {verb} stream {name!r} takes stream format {version}, and this software has "
                f"format {FORMAT_VERSION}: upgrade to {release} or later"
            )


_WHOLE_MAX: Final = 2**53
"""Every JSON reader represents whole numbers up to here exactly."""
_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "partitions": (1, PARTITIONS_MAX),
    "retention_ms": (UNLIMITED, _WHOLE_MAX),
    "retention_bytes": (UNLIMITED, _WHOLE_MAX),
    "gc_grace_ms": (0, _WHOLE_MAX),
    "segment_bytes": (limits.KIB, _WHOLE_MAX),
    "segment_ms": (1_000, _WHOLE_MAX),
    "linger_ms": (0, _WHOLE_MAX),
    "batch_bytes": (1, limits.BATCH_MAX_BYTES - limits.MIB),
}

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
    "message.timestamp.type": "a record has the timestamp that its producer sets, else that of its "
    "ingestion",
    "min.cleanable.dirty.ratio": _COMPACTED,
    "min.compaction.lag.ms": _COMPACTED,
    "min.insync.replicas": _REPLICAS,
    "preallocate": "objects are not files; nothing is allocated before it is written",
    "remote.storage.enable": "everything is in object storage; there is nothing else",
    "replication.factor": _REPLICAS,
    "unclean.leader.election.enable": "there is no election: the object store says who may write",
}
_BARE: Final = re.compile(r"[0-9][0-9_,]*(?:\.[0-9]+)?")


def parse_settings(settings: Mapping[str, object]) -> dict[str, Any]:
    """The fields of `StreamConfig` that these settings name, with their values."""
    parsed: dict[str, Any] = {}
    for field, (name, value) in _NAMES.resolve(settings).items():
        text = str(value).strip()
        if name == "retention" and text != "0" and _BARE.fullmatch(text):
            raise Refused(f"{name}={text}: name a unit, as in {text}d, {text}h or {text}ms")
        parsed[field] = _PARSERS[field](name, value)
    return parsed


def _or_unlimited(parse: Callable[[str, object], int]) -> Callable[[str, object], int]:
    return lambda name, value: UNLIMITED if is_forever(value) else parse(name, value)


def _or_default(parse: Callable[[str, object], int]) -> Callable[[str, object], int | None]:
    def parse_or_default(name: str, value: object) -> int | None:
        is_default = value is None or str(value).strip().lower() == "default"
        return None if is_default else parse(name, value)

    return parse_or_default


def _one_of(*choices: str) -> Callable[[str, object], str]:
    return lambda name, value: parse_choice(name, value, choices)


def _compression(name: str, value: object) -> str:
    text = str(value).strip().lower()
    if text == "producer":
        raise Refused(f"{name}=producer: the stream sets its compression: none, zstd or lz4")
    return "none" if text == "uncompressed" else parse_choice(name, value, ("none", "zstd", "lz4"))


def _v1_reading(name: str, value: object) -> str | msgspec.UnsetType:
    chosen = parse_choice(name, value, ("strict", "lenient"))
    return chosen if chosen == "lenient" else msgspec.UNSET


def _group_or_none(name: str, value: object) -> str | None:
    text = "none" if value is None else str(value).strip()
    return None if text.lower() == "none" else check_group_name(text)


_PARSERS: Final[dict[str, Callable[[str, object], Any]]] = {
    "partitions": parse_whole_number,
    "format": _one_of("native", "v1"),
    "compression": _compression,
    "retention_ms": _or_unlimited(parse_duration_ms),
    "retention_bytes": _or_unlimited(parse_size_bytes),
    "required_group": _group_or_none,
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
    fixed={"cleanup.policy": (("delete",), f"retention deletes records; {_COMPACTED}")},
    refused=_MEANINGLESS,
)


def check_config(config: StreamConfig) -> StreamConfig:
    """The config itself; `Refused` names a setting with an invalid value."""
    for name, (least, most) in _BOUNDS.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            raise Refused(f"{name} is {value:,}: it lies between {least:,} and {most:,}")
    if config.format != "v1" and config.is_lenient:
        raise Refused(
            "v1_reading is for streams in the published v1 format: the native format has a "
            "checksum, and no deviations to be lenient about"
        )
    if config.format == "v1":
        if config.compression == "lz4":
            raise Refused("the published v1 format knows compression none and zstd, not lz4")
        if config.is_typed or config.schemas:
            raise Refused(
                "a stream in the published v1 format carries opaque values and no columns: declare "
                "no schema, or use the native format"
            )
    return config


def with_changes(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    """The config with these changes, checked."""
    return check_config(msgspec.structs.replace(config, **changes))


def check_store(store: Any) -> None:
    """Refuse anything but a `Store`, such as its address."""
    if isinstance(store, str):
        raise Refused(
            "a store is needed here, not its address: open it first, as in "
            f"headwater.open_store({store!r}), and close it when you are done"
        )
    if not isinstance(store, Store):
        raise Refused(f"a store is needed here (headwater.open_store), not {type(store).__name__}")


class RetypeNeeded(Exception):
    """Inferred types are to be replaced by types that are not wider."""

    def __init__(self, schema: pa.Schema, columns: list[pa.Field]) -> None:
        super().__init__(", ".join(field.name for field in columns))
        self.schema = schema
        """The schema with the new types."""
        self.columns = columns
        """The columns whose retained values must all fit the new type."""


class StreamRegister:
    """The register `stream.json` of one stream. For one operation at a time.

    Always holds: the format versions are checked before the rest is used, and before the register
    is changed, because a rewrite would lose what a later version added. The register is never
    deleted: a slow delete could remove the register of a later stream.
    """

    def __init__(self, store: Store, name: str) -> None:
        check_store(store)
        self._name = check_stream_name(name)
        self._url = store.url
        # Raw: the versions in the value decide whether the rest can be decoded.
        self._register = Register(store, stream_key(name), msgspec.Raw)

    async def read(self, *, writing: bool) -> StreamConfig:
        """The config, also of a deleted stream; `NotFound` if there never was one."""
        try:
            raw = (await self._register.read()).value
        except NotFound as error:
            raise self._missing() from error
        return decode_config(self._name, raw, writing=writing)

    async def read_live(self, *, writing: bool) -> StreamConfig:
        """The config of a stream that exists; `NotFound` if it does not."""
        return self._live(await self.read(writing=writing))

    async def update(self, change: Callable[[StreamConfig | None], StreamConfig]) -> StreamConfig:
        """Change the config. `change` only computes; if it raises, nothing is written."""

        def change_raw(raw: msgspec.Raw | None) -> msgspec.Raw:
            now = None if raw is None else decode_config(self._name, raw, writing=True)
            after = change(now)
            return raw if raw is not None and after == now else encode_config(after)

        stored = (await self._register.update(change_raw)).value
        return decode_config(self._name, stored, writing=True)

    async def replace_damaged(self, config: StreamConfig) -> None:
        """Replace a register that cannot be read by a tombstone."""
        encoded = encode_config(config)

        def replace(raw: msgspec.Raw | None) -> msgspec.Raw:
            if raw is None:
                return encoded
            try:
                current = decode_config(self._name, raw, writing=True)
            except Corrupt:
                return encoded
            raise Conflict(f"stream {self._name!r} was repaired meanwhile", current=current)

        try:
            await self._register.replace_damaged(encoded)
        except Refused:
            # The register is intact, but its value is not the config of a stream.
            await self._register.update(replace)

    async def update_live(
        self, stream_id: str, change: Callable[[StreamConfig], StreamConfig]
    ) -> StreamConfig:
        """Change this stream; `Conflict` if another one has its name now, `NotFound` if none."""

        def change_live(now: StreamConfig | None) -> StreamConfig:
            if now is None:
                raise self._missing()
            if self._live(now).id != stream_id:
                raise Conflict(
                    f"stream {self._name!r} was deleted and created again meanwhile: the one that "
                    f"was meant had the id {stream_id}",
                    current=now,
                )
            return change(now)

        return await self.update(change_live)

    def _live(self, config: StreamConfig) -> StreamConfig:
        if not config.is_live:
            raise NotFound(f"stream {self._name!r} was deleted")
        return config

    def _missing(self) -> NotFound:
        return NotFound(f"there is no stream {self._name!r} in {self._url}")
