"""Options of the data source: the table of all of them, and the options of a reader or writer.

Always holds: an option that is not in the table, or not for this mode, is an error that suggests
the right one; parsing sends no request to a store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

from headwater.core.errors import Refused
from headwater.core.limits import MIB
from headwater.core.settings import closest, parse_flag
from headwater.spark.option_values import (
    LATEST,
    Offsets,
    TimeBound,
    one_of,
    parse_assignment,
    parse_bytes,
    parse_count,
    parse_group,
    parse_moment_us,
    parse_moments_us,
    parse_names,
    parse_offsets,
    parse_pattern,
    parse_stream,
    parse_streams,
    parse_text,
    parse_timeout_ms,
    parse_url,
    parse_version,
)

GROUP_ID: Final = "groupId"


class Mode(StrEnum):
    """The method of Spark that uses the data source."""

    READ = "read"
    READ_STREAM = "readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


READING: Final = frozenset({Mode.READ, Mode.READ_STREAM})
WRITING: Final = frozenset({Mode.WRITE, Mode.WRITE_STREAM})
_READ: Final = frozenset({Mode.READ})
_STREAM: Final = frozenset({Mode.READ_STREAM})
_WRITE: Final = frozenset({Mode.WRITE})
_ALL: Final = READING | WRITING


class Option(NamedTuple):
    name: str
    modes: frozenset[Mode]
    parse: Callable[[str, str], Any]
    help: str
    default: str = ""
    """As the documentation has it; the value is that of the field."""

    @property
    def shown_default(self) -> str:
        return self.default or ("false" if self.parse is parse_flag else "")


_ROWS: Final = (
    Option("url", _ALL, parse_url, "The address of the store.", "the path"),
    Option("path", _ALL, parse_url, "The address that load() or save() was given."),
    Option("subscribe", READING, parse_streams, "Streams, by name: orders,bills."),
    Option("subscribePattern", READING, parse_pattern, "Streams, by a pattern: ord.*"),
    Option("assign", READING, parse_assignment, 'Streams and partitions: {"orders": [0, 1]}.'),
    Option(
        "startingOffsets",
        READING,
        parse_offsets,
        "Where to begin; for a stream, where a new group begins.",
        "earliest; readStream: latest",
    ),
    Option(
        "startingTimestamp",
        READING,
        parse_moment_us,
        "Begin with the first record whose timestamp is this time or later; overrides offsets.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READING,
        parse_moments_us,
        'The same, with a time for each partition: {"orders": {"0": 1767225600000}}.',
    ),
    Option(
        "startingIngestionTimestamp",
        READING,
        parse_moment_us,
        "Begin with the first record that was ingested at this time or later.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        READING,
        one_of("error", "latest"),
        "What to do if no record is that late: fail, or begin at the end.",
        "error",
    ),
    Option("endingOffsets", _READ, parse_offsets, "Where to end, not included.", "latest"),
    Option(
        "endingTimestamp",
        _READ,
        parse_moment_us,
        "End before the first record whose timestamp is this time or later; overrides offsets.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        _READ,
        parse_moments_us,
        "The same, with a time for each partition.",
    ),
    Option(
        "endingIngestionTimestamp",
        _READ,
        parse_moment_us,
        "End before the first record that was ingested at this time or later.",
    ),
    Option(
        GROUP_ID,
        _STREAM,
        parse_group,
        "The group whose position the query continues from and commits.",
        "required",
    ),
    Option(
        "takeOver", _STREAM, parse_flag, "Take the ownership from another group, which stops it."
    ),
    Option(
        "maxOffsetsPerTrigger",
        _STREAM,
        parse_count,
        "At most so many records in a micro-batch.",
        "no limit",
    ),
    Option(
        "maxBytesPerTrigger",
        _STREAM,
        parse_bytes,
        "At most so many stored bytes in a micro-batch: 512MiB.",
        "no limit",
    ),
    Option(
        "minPartitions",
        READING,
        parse_count,
        "At least so many tasks, if there are as many records.",
        "by size",
    ),
    Option(
        "maxPartitionBytes",
        READING,
        parse_bytes,
        "About how many stored bytes a task reads.",
        "64MiB",
    ),
    Option(
        "failOnDataLoss",
        READING,
        parse_flag,
        "Fail if wanted records were deleted by retention; false warns and continues.",
        "true",
    ),
    Option("columns", READING, parse_names, "Columns to read, in this order.", "all"),
    Option("includeHeaders", READING, parse_flag, "Show the records' headers."),
    Option("includeIngestionTimestamp", READING, parse_flag, "Show when each record was ingested."),
    Option(
        "includeMetadata", READING, parse_flag, "Show the metadata of each record's produce call."
    ),
    Option(
        "valueFormat",
        READING,
        one_of("raw", "arrow"),
        "raw: key and value are bytes. arrow: typed columns.",
        "as written",
    ),
    Option(
        "onBadBatch",
        READING,
        one_of("fail", "skip", "deadLetter"),
        "What to do with a batch that is damaged or missing: fail; read: skip; "
        "readStream: deadLetter.",
        "fail",
    ),
    Option("topic", WRITING, parse_stream, "The stream to write to.", "required"),
    Option("txnAppId", _WRITE, parse_text, "With txnVersion: identifies this write."),
    Option(
        "txnVersion",
        _WRITE,
        parse_version,
        "A number that rises; a version that is written, or an earlier one, is not written again.",
    ),
    Option(
        "sinkTimeout",
        WRITING,
        parse_timeout_ms,
        "How long an unfinished write is kept before its uploads are deleted.",
        "24h",
    ),
    Option(
        "compression",
        WRITING,
        one_of("none", "zstd", "lz4"),
        "How batches are compressed.",
        "the stream's",
    ),
    Option(
        "batchBytes",
        WRITING,
        parse_bytes,
        "About how large batches are before they are compressed.",
        "32MiB",
    ),
)

OPTIONS: Final[dict[str, Option]] = {option.name: option for option in _ROWS}

_BY_LOWER: Final = {name.lower(): option for name, option in OPTIONS.items()}
_IGNORED: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark itself that it also passes to sources and sinks."""

_INSTEAD: Final[dict[str, str]] = {
    "kafka.bootstrap.servers": "there are no brokers; load() takes the address of a store",
    "kafka.group.id": "the group is named by groupId",
    "groupIdPrefix": "the group is named by groupId, one for each query",
    "minOffsetsPerTrigger": "use trigger(processingTime=…) to wait for more records",
    "maxTriggerDelay": "use trigger(processingTime=…) to wait for more records",
    "maxRecordsPerPartition": "use minPartitions or maxPartitionBytes",
    "fetchOffset.numRetries": "the store retries its requests",
    "fetchOffset.retryIntervalMs": "the store retries its requests",
    "kafkaConsumer.pollTimeoutMs": "nothing is polled: objects are fetched",
    "startingOffset": "the option is called startingOffsets",
    "endingOffset": "the option is called endingOffsets",
    "stream": "to read, use subscribe; to write, use topic",
}
"""Options of Spark's Kafka source and similar ones, and what to do instead."""
_INSTEAD_BY_LOWER: Final = {name.lower(): text for name, text in _INSTEAD.items()}


def parse_options(options: Mapping[str, str], mode: Mode) -> dict[str, Any]:
    """The values of the given options, by name, and the address under `url`.

    As in Spark, case does not count in names of options. The value of an unknown option is never
    shown: it may be a secret.
    """
    parsed: dict[str, Any] = {}
    misplaced = []
    for name, text in options.items():
        option = _BY_LOWER.get(name.lower())
        if option is None:
            if name.lower() not in _IGNORED:
                raise _unknown(name, mode)
        elif mode in option.modes:
            parsed[option.name] = option.parse(option.name, str(text))
        else:
            misplaced.append(option)
    if misplaced:
        raise _misplaced(misplaced, mode)
    url, path = parsed.pop("url", None), parsed.pop("path", None)
    if url is not None and path is not None and url != path:
        raise Refused("the address is given twice, as a path and as option url: give one")
    if url is None and path is None:
        raise Refused(
            'the address of the store is missing: .load("s3://bucket/prefix"), or option url'
        )
    return {"url": url or path, **parsed}


def reading_mode(given: Mapping[str, str]) -> Mode:
    """Whether the options are those of a batch or of a stream. Spark does not say it."""
    options = [_BY_LOWER[name.lower()] for name in given if name.lower() in _BY_LOWER]
    of_streams = [option.name for option in options if option.modes == _STREAM]
    if of_streams and GROUP_ID not in of_streams:
        # Either may be meant, so the error says what to do for both.
        raise Refused(
            f"{' and '.join(of_streams)} without {GROUP_ID}: for readStream {GROUP_ID} is missing, "
            "the group that keeps the query's position; for read, leave "
            f"{' and '.join(of_streams)} out"
        )
    return Mode.READ_STREAM if of_streams else Mode.READ


def _misplaced(options: Sequence[Option], mode: Mode) -> Refused:
    names = [option.name for option in options]
    if "topic" in names:
        return Refused("topic names the stream to write to; to read, use subscribe")
    if "subscribe" in names:
        return Refused("subscribe names the streams to read; to write, use topic")
    where = [f"{option.name} is an option of {_where(option)}" for option in options]
    it = "it" if len(where) == 1 else "them"
    return Refused(f"{', '.join(where)}, and this is {mode}: leave {it} out")


def _where(option: Option) -> str:
    return " and ".join(mode for mode in Mode if mode in option.modes)


def _unknown(name: str, mode: Mode) -> Refused:
    lower = name.lower()
    if lower in _INSTEAD_BY_LOWER:
        return Refused(f"there is no option {name}: {_INSTEAD_BY_LOWER[lower]}")
    if lower.startswith("kafka."):
        return Refused(f"there is no option {name}: there is no Kafka client to configure here")
    kind, side = ("reading", READING) if mode in READING else ("writing", WRITING)
    options = {option.name: option for option in OPTIONS.values() if option.modes & side}
    near = closest(name, options)
    if near is not None:
        where = "" if mode in options[near].modes else f", an option of {_where(options[near])}"
        return Refused(f"there is no option {name}; did you mean {near}{where}?")
    return Refused(f"there is no option {name}; for {kind} there are {', '.join(sorted(options))}")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of `spark.read` and `spark.readStream`. Small, and safe to send."""

    url: str
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: Mapping[str, list[int]] = field(default_factory=dict)
    starting_offsets: Offsets | None = None
    starting_time: TimeBound | None = None
    """Overrides the offsets."""
    starts_at_latest: bool = False
    """If no record is that late: begin at the end instead of failing."""
    ending_offsets: Offsets = LATEST
    ending_time: TimeBound | None = None
    """Overrides the offsets."""
    group_id: str = ""
    take_over: bool = False
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partition_bytes: int = 64 * MIB
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    include_ingestion_timestamp: bool = False
    include_metadata: bool = False
    value_format: str | None = None
    on_bad_batch: str = "fail"

    @property
    def starting_option(self) -> str | None:
        """The option that says where to begin, if any."""
        if self.starting_time is not None:
            return self.starting_time.option
        return None if self.starting_offsets is None else "startingOffsets"

    @classmethod
    def parse(cls, given: Mapping[str, str], mode: Mode) -> ReadOptions:
        """Parse what Spark passes on; `Refused` says what to change."""
        parsed = parse_options(given, mode)
        _check_source(parsed)
        if mode is Mode.READ_STREAM and GROUP_ID not in parsed:
            raise Refused(
                "groupId is missing: the group that keeps this query's position, as in "
                '.option("groupId", "billing")'
            )
        _check_bad_batches(parsed.get("onBadBatch"), mode)
        return cls(
            **_fields_of(cls, parsed),
            starting_time=_time_bound(parsed, "starting"),
            starts_at_latest=parsed.get("startingOffsetsByTimestampStrategy") == LATEST,
            ending_time=_time_bound(parsed, "ending"),
        )


def _fields_of(cls: type[Any], parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The given options that have a field of their own: `groupId` is `group_id`."""
    by_field = {re.sub("[A-Z]", r"_\g<0>", name).lower(): parsed[name] for name in parsed}
    return {field.name: by_field[field.name] for field in fields(cls) if field.name in by_field}


def _time_bound(parsed: Mapping[str, Any], side: str) -> TimeBound | None:
    whole, each = f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    ingested = f"{side}IngestionTimestamp"
    present = [name for name in (whole, each, ingested) if name in parsed]
    if ingested in present and len(present) > 1:
        raise Refused(f"{present[0]} and {ingested} use different times: give one of them")
    if not present:
        return None
    name = present[0]
    if name == each:
        return TimeBound(each, "timestamp", moments_us=parsed[each])
    return TimeBound(name, "ingestion" if name == ingested else "timestamp", parsed[name])


def _check_source(parsed: Mapping[str, Any]) -> None:
    names = ("subscribe", "subscribePattern", "assign")
    present = [name for name in names if name in parsed]
    if not present:
        raise Refused(
            'which stream? Name it: .option("subscribe", "orders"); or use subscribePattern or '
            "assign"
        )
    if len(present) > 1:
        raise Refused(f"{' and '.join(present)} both say what to read: give one of them")


def _check_bad_batches(choice: str | None, mode: Mode) -> None:
    if choice == "skip" and mode is Mode.READ_STREAM:
        raise Refused(
            "onBadBatch=skip is for read; for readStream use onBadBatch=deadLetter, which records "
            "the batch"
        )
    if choice == "deadLetter" and mode is Mode.READ:
        raise Refused(
            "onBadBatch=deadLetter is for readStream; for read, which writes nothing, use "
            "onBadBatch=skip"
        )


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The options of `df.write` and `df.writeStream`. Small, and safe to send."""

    url: str
    topic: str
    txn_app_id: str | None = None
    txn_version: int | None = None
    sink_timeout: int = 24 * 3_600_000
    """In milliseconds."""
    compression: str | None = None
    """None for that of the stream."""
    batch_bytes: int = 32 * MIB

    @classmethod
    def parse(cls, given: Mapping[str, str], mode: Mode) -> WriteOptions:
        """Parse what Spark passes on; `Refused` says what to change."""
        parsed = parse_options(given, mode)
        if "topic" not in parsed:
            raise Refused('which stream? Name it: .option("topic", "orders")')
        if ("txnAppId" in parsed) != ("txnVersion" in parsed):
            raise Refused("txnAppId and txnVersion say together which write this is: give both")
        return cls(**_fields_of(cls, parsed))
