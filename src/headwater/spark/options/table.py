"""The table of all options, and how the options of a reader or writer are parsed by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from headwater.core.errors import Refused
from headwater.core.limits import MIB
from headwater.core.settings import closest, parse_flag
from headwater.spark.options.values import (
    LATEST,
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
MAX_PARTITION_BYTES: Final = 64 * MIB
SINK_TIMEOUT_MS: Final = 24 * 3_600_000
SINK_BATCH_BYTES: Final = 32 * MIB


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
    default: Any = None
    shown_default: str = ""
    """The default as the documentation has it."""


_ROWS: Final = (
    Option("url", _ALL, parse_url, "The address of the store.", shown_default="the path"),
    Option("path", _ALL, parse_url, "What load() or save() was given: the same."),
    Option("subscribe", READING, parse_streams, "Streams, by name: orders,bills."),
    Option("subscribePattern", READING, parse_pattern, "Streams, by a pattern: ord.*"),
    Option("assign", READING, parse_assignment, 'Streams and partitions: {"orders": [0, 1]}.'),
    Option(
        "startingOffsets",
        READING,
        parse_offsets,
        "Where to begin; for a stream, where a new group begins.",
        shown_default="earliest; readStream: latest",
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
        default="error",
        shown_default="error",
    ),
    Option(
        "endingOffsets",
        _READ,
        parse_offsets,
        "Where to end, not included.",
        default=LATEST,
        shown_default="latest",
    ),
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
        shown_default="required",
    ),
    Option(
        "takeOver",
        _STREAM,
        parse_flag,
        "Take the ownership from another group, which stops it.",
        default=False,
        shown_default="false",
    ),
    Option(
        "maxOffsetsPerTrigger",
        _STREAM,
        parse_count,
        "At most so many records in a micro-batch.",
        shown_default="no limit",
    ),
    Option(
        "maxBytesPerTrigger",
        _STREAM,
        parse_bytes,
        "At most so many stored bytes in a micro-batch: 512MiB.",
        shown_default="no limit",
    ),
    Option(
        "minPartitions",
        READING,
        parse_count,
        "At least so many tasks, if there are as many records.",
        shown_default="by size",
    ),
    Option(
        "maxPartitionBytes",
        READING,
        parse_bytes,
        "About how many stored bytes a task reads.",
        default=MAX_PARTITION_BYTES,
        shown_default="64MiB",
    ),
    Option(
        "failOnDataLoss",
        READING,
        parse_flag,
        "Fail if wanted records were deleted by retention; false warns and continues.",
        default=True,
        shown_default="true",
    ),
    Option("columns", READING, parse_names, "Columns to read, in this order.", shown_default="all"),
    Option(
        "includeHeaders",
        READING,
        parse_flag,
        "Show the records' headers.",
        default=False,
        shown_default="false",
    ),
    Option(
        "includeIngestionTimestamp",
        READING,
        parse_flag,
        "Show when each record was ingested.",
        default=False,
        shown_default="false",
    ),
    Option(
        "includeMetadata",
        READING,
        parse_flag,
        "Show the metadata of each record's produce call.",
        default=False,
        shown_default="false",
    ),
    Option(
        "valueFormat",
        READING,
        one_of("raw", "arrow"),
        "raw: key and value are bytes. arrow: typed columns.",
        shown_default="as written",
    ),
    Option(
        "onBadBatch",
        READING,
        one_of("fail", "skip", "deadLetter"),
        "What to do with a batch that is damaged or missing: fail; read: skip; "
        "readStream: deadLetter.",
        default="fail",
        shown_default="fail",
    ),
    Option("topic", WRITING, parse_stream, "The stream to write to.", shown_default="required"),
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
        default=SINK_TIMEOUT_MS,
        shown_default="24h",
    ),
    Option(
        "compression",
        WRITING,
        one_of("none", "zstd", "lz4"),
        "How batches are compressed.",
        shown_default="the stream's",
    ),
    Option(
        "batchBytes",
        WRITING,
        parse_bytes,
        "About how large batches are before they are compressed.",
        default=SINK_BATCH_BYTES,
        shown_default="32MiB",
    ),
)

OPTIONS: Final[dict[str, Option]] = {option.name: option for option in _ROWS}

IGNORED: Final = frozenset({"checkpointLocation", "queryName"})
"""Options of Spark itself that it also passes to sources and sinks."""

INSTEAD: Final[dict[str, str]] = {
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


_BY_LOWER: Final = {name.lower(): option for name, option in OPTIONS.items()}
_IGNORED_LOWER: Final = {name.lower() for name in IGNORED}
_INSTEAD_LOWER: Final = {name.lower(): text for name, text in INSTEAD.items()}


def parse_options(given: Mapping[str, str], mode: Mode) -> dict[str, Any]:
    """The value of every option of this mode, by name.

    As in Spark, case does not count in names of options. The value of an unknown option is never
    shown: it may be a secret.
    """
    parsed = {name: option.default for name, option in OPTIONS.items() if mode in option.modes}
    misplaced = []
    for name, text in given.items():
        option = _BY_LOWER.get(name.lower())
        if option is None:
            if name.lower() in _IGNORED_LOWER:
                continue
            raise _unknown(name, mode)
        if mode not in option.modes:
            misplaced.append(option)
            continue
        parsed[option.name] = option.parse(option.name, str(text))
    if misplaced:
        raise _misplaced(misplaced, mode)
    return _with_url(parsed)


def reading_mode(given: Mapping[str, str]) -> Mode:
    """Whether the options are those of a batch or of a stream. Spark does not say it."""
    known = [_BY_LOWER[name.lower()] for name in given if name.lower() in _BY_LOWER]
    of_streams = [one.name for one in known if one.modes == frozenset({Mode.READ_STREAM})]
    if of_streams and GROUP_ID not in of_streams:
        # Either may be meant, so the error says what to do for both.
        raise Refused(
            f"{' and '.join(of_streams)} without {GROUP_ID}: for readStream {GROUP_ID} is missing, "
            "the group that keeps the query's position; for read, leave "
            f"{' and '.join(of_streams)} out"
        )
    return Mode.READ_STREAM if of_streams else Mode.READ


def _with_url(parsed: dict[str, Any]) -> dict[str, Any]:
    """Put the address under `url`, also if it was given as `path`."""
    url, path = parsed.pop("url"), parsed.pop("path")
    if url is not None and path is not None and url != path:
        raise Refused("the address is given twice, as a path and as option url: give one")
    if url is None and path is None:
        raise Refused(
            'the address of the store is missing: .load("s3://bucket/prefix"), or option url'
        )
    return {"url": url or path, **parsed}


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
    if lower in _INSTEAD_LOWER:
        return Refused(f"there is no option {name}: {_INSTEAD_LOWER[lower]}")
    if lower.startswith("kafka."):
        return Refused(f"there is no option {name}: there is no Kafka client to configure here")
    kind, side = ("reading", READING) if mode in READING else ("writing", WRITING)
    known = {option.name: option for option in OPTIONS.values() if option.modes & side}
    near = closest(name, known)
    if near is not None:
        where = "" if mode in known[near].modes else f", an option of {_where(known[near])}"
        return Refused(f"there is no option {name}; did you mean {near}{where}?")
    return Refused(f"there is no option {name}; for {kind} there are {', '.join(sorted(known))}")
