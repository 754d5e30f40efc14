"""The table of all options, and how a reader's or writer's options are parsed by it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from headwater.core.errors import Refused
from headwater.core.limits import MIB
from headwater.spark.options import values
from headwater.spark.options.values import (
    LATEST,
    READING,
    WRITING,
    Mode,
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


_BY_LOWER: Final = {name.lower(): option for name, option in OPTIONS.items()}
_OWN_LOWER: Final = {name.lower() for name in SPARKS_OWN}
_ELSEWHERE_LOWER: Final = {name.lower(): cure for name, cure in ELSEWHERE.items()}


def parse_options(given: Mapping[str, str], mode: Mode) -> dict[str, Any]:
    """The value of every option that there is for this mode, by name.

    Spark does not tell capitals apart in the names of options. A value that is not for an option
    of ours is never shown: it may be a secret.
    """
    parsed = {name: option.default for name, option in OPTIONS.items() if mode in option.modes}
    misplaced = []
    for name, text in given.items():
        option = _BY_LOWER.get(name.lower())
        if option is None:
            if name.lower() in _OWN_LOWER:
                continue
            raise _unknown(name, mode)
        if mode not in option.modes:
            misplaced.append(option)
            continue
        parsed[option.name] = option.parse(option.name, str(text))
    if misplaced:
        raise _misplaced(misplaced, mode)
    return _addressed(parsed)


def reading_mode(given: Mapping[str, str]) -> Mode:
    """Whether a batch or a stream is meant, from options that only one of them has."""
    known = [_BY_LOWER[name.lower()] for name in given if name.lower() in _BY_LOWER]
    of_streams = [one.name for one in known if one.modes == frozenset({Mode.READ_STREAM})]
    if of_streams and GROUP_ID not in of_streams:
        # Which of the two it is cannot be told: advice for one alone would be wrong for the other.
        raise Refused(
            f"{' and '.join(of_streams)} without {GROUP_ID}: for readStream {GROUP_ID} is missing, "
            "the name under which the query's position is kept; for read, leave "
            f"{' and '.join(of_streams)} out"
        )
    return Mode.READ_STREAM if of_streams else Mode.READ


def _addressed(parsed: dict[str, Any]) -> dict[str, Any]:
    """With the address under `url`, whichever way it was given."""
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
    told = [f"{option.name} is an option of {_where(option)}" for option in options]
    it = "it" if len(told) == 1 else "them"
    return Refused(f"{', '.join(told)}, and this is {mode}: leave {it} out")


def _where(option: Option) -> str:
    return " and ".join(str(known) for known in Mode if known in option.modes)


def _unknown(name: str, mode: Mode) -> Refused:
    lower = name.lower()
    if lower in _ELSEWHERE_LOWER:
        return Refused(f"there is no option {name}: {_ELSEWHERE_LOWER[lower]}")
    if lower.startswith("kafka."):
        return Refused(f"there is no option {name}: there is no Kafka client to configure here")
    kind = "reading" if mode in READING else "writing"
    side = READING if mode in READING else WRITING
    known = {key: option for key, option in _BY_LOWER.items() if option.modes & side}
    near = difflib.get_close_matches(lower, list(known), n=1, cutoff=0.6)
    if near:
        meant = known[near[0]]
        where = "" if mode in meant.modes else f", an option of {_where(meant)}"
        return Refused(f"there is no option {name}; did you mean {meant.name}{where}?")
    names = sorted(option.name for option in OPTIONS.values() if option.modes & side)
    return Refused(f"there is no option {name}; for {kind} there are {', '.join(names)}")
