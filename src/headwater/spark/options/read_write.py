"""The parsed options of a reader and of a writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.buffer.queue import TimeBy
from headwater.core.errors import Refused
from headwater.spark.options.table import (
    MAX_PARTITION_BYTES,
    SINK_BATCH_BYTES,
    SINK_TIMEOUT_MS,
    Mode,
    parse_options,
)
from headwater.spark.options.values import LATEST


@dataclass(frozen=True)
class TimeBound:
    """Where a read begins or ends, by time."""

    option: str
    """The option that sets it."""
    by: TimeBy
    moment_us: int = 0
    """For every partition, unless `moments_us` has one for each."""
    moments_us: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def of(self, stream: str, partition: int) -> int:
        """The time for one partition."""
        return self.moments_us[stream][partition] if self.moments_us else self.moment_us


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of `spark.read` and `spark.readStream`. Small, and safe to send."""

    url: str
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: Mapping[str, list[int]] = field(default_factory=dict)
    starting_offsets: Any = None
    """`Offsets`; None if the option was not given."""
    starting_time: TimeBound | None = None
    """Overrides the offsets."""
    starts_at_latest: bool = False
    """If no record is that late: begin at the end instead of failing."""
    ending_offsets: Any = LATEST
    """`Offsets`."""
    ending_time: TimeBound | None = None
    """Overrides the offsets."""
    group_id: str = ""
    take_over: bool = False
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partition_bytes: int = MAX_PARTITION_BYTES
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
        if mode is Mode.READ_STREAM and parsed["groupId"] is None:
            raise Refused(
                "groupId is missing: the group that keeps this query's position, as in "
                '.option("groupId", "billing")'
            )
        _check_bad_batches(parsed["onBadBatch"], mode)
        columns = parsed["columns"]
        return cls(
            url=parsed["url"],
            subscribe=tuple(parsed["subscribe"] or ()),
            subscribe_pattern=parsed["subscribePattern"],
            assign=parsed["assign"] or {},
            starting_offsets=parsed["startingOffsets"],
            starting_time=_time_bound(parsed, "starting"),
            starts_at_latest=parsed["startingOffsetsByTimestampStrategy"] == LATEST,
            ending_offsets=parsed.get("endingOffsets", LATEST),
            ending_time=_time_bound(parsed, "ending"),
            group_id=parsed.get("groupId") or "",
            take_over=parsed.get("takeOver", False),
            max_offsets_per_trigger=parsed.get("maxOffsetsPerTrigger"),
            max_bytes_per_trigger=parsed.get("maxBytesPerTrigger"),
            min_partitions=parsed["minPartitions"],
            max_partition_bytes=parsed["maxPartitionBytes"],
            fail_on_data_loss=parsed["failOnDataLoss"],
            columns=None if columns is None else tuple(columns),
            include_headers=parsed["includeHeaders"],
            include_ingestion_timestamp=parsed["includeIngestionTimestamp"],
            include_metadata=parsed["includeMetadata"],
            value_format=parsed["valueFormat"],
            on_bad_batch=parsed["onBadBatch"],
        )


def _time_bound(parsed: Mapping[str, Any], side: str) -> TimeBound | None:
    whole, each = f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    ingested = f"{side}IngestionTimestamp"
    given = [name for name in (whole, each, ingested) if parsed.get(name) is not None]
    if ingested in given and len(given) > 1:
        raise Refused(f"{given[0]} and {ingested} use different times: give one of them")
    if not given:
        return None
    name = given[0]
    if name == each:
        return TimeBound(each, "timestamp", moments_us=parsed[each])
    return TimeBound(name, "ingestion" if name == ingested else "timestamp", parsed[name])


def _check_source(parsed: Mapping[str, Any]) -> None:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if parsed[name] is not None]
    if not given:
        raise Refused(
            'which stream? Name it: .option("subscribe", "orders"); or use subscribePattern or '
            "assign"
        )
    if len(given) > 1:
        raise Refused(f"{' and '.join(given)} both say what to read: give one of them")


def _check_bad_batches(choice: str, mode: Mode) -> None:
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
    sink_timeout_ms: int = SINK_TIMEOUT_MS
    compression: str | None = None
    """None for that of the stream."""
    batch_bytes: int = SINK_BATCH_BYTES

    @classmethod
    def parse(cls, given: Mapping[str, str], mode: Mode) -> WriteOptions:
        """Parse what Spark passes on; `Refused` says what to change."""
        parsed = parse_options(given, mode)
        if parsed["topic"] is None:
            raise Refused('which stream? Name it: .option("topic", "orders")')
        app_id, version = parsed.get("txnAppId"), parsed.get("txnVersion")
        if (app_id is None) != (version is None):
            raise Refused("txnAppId and txnVersion say together which write this is: give both")
        return cls(
            url=parsed["url"],
            topic=parsed["topic"],
            txn_app_id=app_id,
            txn_version=version,
            sink_timeout_ms=parsed["sinkTimeout"],
            compression=parsed["compression"],
            batch_bytes=parsed["batchBytes"],
        )
