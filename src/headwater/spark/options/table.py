"""The table of all options: what each is for, what it is without being given, how it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headwater.core.limits import MIB
from headwater.spark.options import values
from headwater.spark.options.mode import READING, WRITING, Mode
from headwater.spark.options.offsets import (
    LATEST,
    parse_assignment,
    parse_moment_us,
    parse_moments_us,
    parse_offsets,
)

GROUP_ID: Final = "groupId"
MAX_PARTITION_BYTES: Final = 64 * MIB
SINK_TIMEOUT_MS: Final = 24 * 3_600_000
SINK_BATCH_BYTES: Final = 32 * MIB


class Option(NamedTuple):
    """One option."""

    name: str
    modes: frozenset[Mode]
    parse: Callable[[str, str], Any]
    default: Any
    shown_default: str
    """The default as the documentation has it."""
    help: str


_READ: Final = frozenset({Mode.READ})
_STREAM: Final = frozenset({Mode.READ_STREAM})
_WRITE: Final = frozenset({Mode.WRITE})
_ALL: Final = READING | WRITING

_ROWS: Final = (
    Option("url", _ALL, values.parse_url, None, "the path", "The address of the store."),
    Option("path", _ALL, values.parse_url, None, "", "What load() or save() was given: the same."),
    Option("subscribe", READING, values.parse_streams, None, "", "Streams, by name: orders,bills."),
    Option(
        "subscribePattern", READING, values.parse_pattern, None, "", "Streams, by a pattern: ord.*"
    ),
    Option(
        "assign", READING, parse_assignment, None, "", 'Streams and partitions: {"orders": [0, 1]}.'
    ),
    Option(
        "startingOffsets",
        READING,
        parse_offsets,
        None,
        "earliest; readStream: latest",
        "Where to begin; of a stream, where a group begins that is not known yet.",
    ),
    Option(
        "startingTimestamp",
        READING,
        parse_moment_us,
        None,
        "",
        "Begin with the first record whose timestamp is this moment or later; goes before offsets.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READING,
        parse_moments_us,
        None,
        "",
        'The same, with a moment for each partition: {"orders": {"0": 1767225600000}}.',
    ),
    Option(
        "startingIngestionTimestamp",
        READING,
        parse_moment_us,
        None,
        "",
        "Begin with the first record that was ingested at this moment or later.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        READING,
        values.one_of("error", "latest"),
        "error",
        "error",
        "What to do where no record is that late: fail, or begin at the end.",
    ),
    Option("endingOffsets", _READ, parse_offsets, LATEST, "latest", "Where to end, not included."),
    Option(
        "endingTimestamp",
        _READ,
        parse_moment_us,
        None,
        "",
        "End before the first record whose timestamp is this moment or later; goes before offsets.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        _READ,
        parse_moments_us,
        None,
        "",
        "The same, with a moment for each partition.",
    ),
    Option(
        "endingIngestionTimestamp",
        _READ,
        parse_moment_us,
        None,
        "",
        "End before the first record that was ingested at this moment or later.",
    ),
    Option(GROUP_ID, _STREAM, values.parse_group, None, "required", "Whose position this is."),
    Option(
        "takeOver",
        _STREAM,
        values.parse_flag,
        False,
        "false",
        "Take the ownership from another group, which stops it.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        _STREAM,
        values.parse_count,
        None,
        "no limit",
        "At most so many records in a micro-batch.",
    ),
    Option(
        "maxBytesPerTrigger",
        _STREAM,
        values.parse_bytes,
        None,
        "no limit",
        "At most so many stored bytes in a micro-batch: 512MiB.",
    ),
    Option(
        "minPartitions",
        READING,
        values.parse_count,
        None,
        "by size",
        "At least so many tasks, if there are as many records.",
    ),
    Option(
        "maxPartitionBytes",
        READING,
        values.parse_bytes,
        MAX_PARTITION_BYTES,
        "64MiB",
        "About how many stored bytes a task reads.",
    ),
    Option(
        "failOnDataLoss",
        READING,
        values.parse_flag,
        True,
        "true",
        "Fail if wanted records went with the retention; false warns and goes on.",
    ),
    Option("columns", READING, values.parse_names, None, "all", "Columns to read, in this order."),
    Option(
        "includeHeaders", READING, values.parse_flag, False, "false", "Show the records' headers."
    ),
    Option(
        "includeIngestionTimestamp",
        READING,
        values.parse_flag,
        False,
        "false",
        "Show when each record was ingested.",
    ),
    Option(
        "includeMetadata",
        READING,
        values.parse_flag,
        False,
        "false",
        "Show the metadata of each record's produce call.",
    ),
    Option(
        "valueFormat",
        READING,
        values.one_of("raw", "arrow"),
        None,
        "as written",
        "raw: key and value are bytes. arrow: typed columns.",
    ),
    Option(
        "onBadBatch",
        READING,
        values.one_of("fail", "skip", "deadLetter"),
        "fail",
        "fail",
        "What becomes of a batch that is damaged or missing: fail; read: skip; "
        "readStream: deadLetter.",
    ),
    Option("topic", WRITING, values.parse_stream, None, "required", "The stream to write to."),
    Option(
        "txnAppId", _WRITE, values.parse_text, None, "", "With txnVersion: whose write this is."
    ),
    Option(
        "txnVersion",
        _WRITE,
        values.parse_number,
        None,
        "",
        "A number that rises; a write of this version or a later one is not made again.",
    ),
    Option(
        "sinkTimeout",
        WRITING,
        values.parse_wait_ms,
        SINK_TIMEOUT_MS,
        "24h",
        "How long an unfinished write is kept before its uploads are collected.",
    ),
    Option(
        "compression",
        WRITING,
        values.one_of("none", "zstd", "lz4"),
        None,
        "the stream's",
        "How batches are compressed.",
    ),
    Option(
        "batchBytes",
        WRITING,
        values.parse_bytes,
        SINK_BATCH_BYTES,
        "32MiB",
        "About how large batches are before they are compressed.",
    ),
)

OPTIONS: Final[dict[str, Option]] = {option.name: option for option in _ROWS}

SPARKS_OWN: Final = frozenset({"checkpointLocation", "queryName"})
"""What Spark hands on to sources and sinks though it is meant for Spark itself."""

ELSEWHERE: Final[dict[str, str]] = {
    "kafka.bootstrap.servers": "there are no brokers; load() takes the address of a store",
    "kafka.group.id": "the group is named by groupId",
    "groupIdPrefix": "the group is named by groupId, and there is one for each query",
    "minOffsetsPerTrigger": "use trigger(processingTime=…) to let records gather",
    "maxTriggerDelay": "use trigger(processingTime=…) to let records gather",
    "maxRecordsPerPartition": "use minPartitions or maxPartitionBytes",
    "fetchOffset.numRetries": "the store repeats its requests by itself",
    "fetchOffset.retryIntervalMs": "the store repeats its requests by itself",
    "kafkaConsumer.pollTimeoutMs": "nothing is polled: objects are fetched",
    "startingOffset": "the option is called startingOffsets",
    "endingOffset": "the option is called endingOffsets",
    "stream": "streams are named by subscribe, and where they are written by topic",
}
"""Options that people know from elsewhere, and what to do instead."""
