"""Describes a batch, native or published v1, detected by its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import xxhash

from headwater.buffer import batch as native
from headwater.buffer.compression import Compression
from headwater.buffer.queue.v1 import batch_format
from headwater.cli.inspect_command import (
    FailedCheck,
    InspectedObject,
    empty_object,
    fail_as_other,
    failed_checksum,
    failed_size,
    show_records,
)
from headwater.cli.report import InspectionReport, offset_in
from headwater.core.errors import Corrupt, HeadwaterError, LimitExceeded, NotSupported, Refused
from headwater.core.runtime import ULID_LENGTH, decode_ulid, ulid_time_ms

NATIVE: Final = "native batch, HWB1"
PUBLISHED: Final = "published v1 batch"
CALLS_SHOWN: Final = 20
_ZSTD_FRAME: Final = bytes.fromhex("28b52ffd")
# The id is before checksum and magic, and has 16 bytes.
_ID_FROM_END: Final = 28
_UNREADABLE: Final = (Corrupt, NotSupported, LimitExceeded)


def describe_batch(source: InspectedObject, *, records: int) -> InspectionReport:
    """What a batch holds, with its first records."""
    data = source.data
    if not data:
        return empty_object("batch", "no batch, but an empty object")
    prefix = native.MAGIC[:3]
    if data[:3] == prefix or data[-4:-1] == prefix:
        return _native(source, records)
    return _published(source, records)


def _native(source: InspectedObject, limit: int) -> InspectionReport:
    data = source.data
    report = InspectionReport(NATIVE, size_bytes=len(data))
    try:
        batch = native.decode_batch(data, expected_id=_ulid(source.key))
    except _UNREADABLE as error:
        report.facts |= _said_by_footer(data)
        _judge_native(report, source, error)
        return report
    footer = native.read_footer(data)
    low_ms, high_ms = batch.calls.time_range_ms
    report.facts |= {
        "id": batch.batch_id,
        "id_time_ms": ulid_time_ms(batch.batch_id),
        "records": footer.rows,
        "calls": footer.calls,
        "first_ingested_ms": low_ms if len(batch.calls) else None,
        "last_ingested_ms": high_ms if len(batch.calls) else None,
        "compression": Compression(data[4]).name.lower(),
        "records_size_bytes": footer.records_bytes,
        "records_uncompressed_bytes": footer.records_raw_bytes,
        "calls_size_bytes": footer.calls_bytes,
        "checksum": f"XXH3 {xxhash.xxh3_64_hexdigest(data[:-12])} matches",
    }
    columns = [
        {
            "column": field.name,
            "type": str(field.type),
            "nulls": column.null_count,
            "size_bytes": column.nbytes,
        }
        for field, column in zip(batch.records.schema, batch.records.columns, strict=True)
    ]
    report.table("columns", columns)
    report.table("produce_calls", _call_rows(batch), len(batch.calls))
    show_records(report, batch.records, limit, batch.records.num_rows)
    return report


def _published(source: InspectedObject, limit: int) -> InspectionReport:
    data = source.data
    report = InspectionReport(PUBLISHED, size_bytes=len(data))
    try:
        footer = batch_format.read_footer(data)
        values = batch_format.decode_batch(data)
    except _UNREADABLE as error:
        if not fail_as_other(report, data, "batch"):
            _judge_published(report, data, error)
        if report.problems[0].check in ("kind", "compression", "version"):
            report.title = "no batch that is known"
        return report
    raw = pa.compute.sum(pa.compute.binary_length(values)).as_py() or 0
    report.facts |= {
        "id": _ulid(source.key.removesuffix(".batch")),
        "records": footer.record_count,
        "compression": footer.compression.name.lower(),
        "block_size_bytes": len(data) - batch_format.FOOTER_BYTES,
        "block_uncompressed_bytes": raw + 4 * len(values),
        "checksum": "none in this format: a changed byte in a record may go unnoticed",
    }
    if report.facts["id"] is None:
        del report.facts["id"]
    report.remark("the calls of a v1 batch, their times and metadata, are in the manifest")
    records = pa.record_batch([values], names=["_value"])
    show_records(report, records, limit, records.num_rows)
    return report


def _judge_published(report: InspectionReport, data: bytes, error: HeadwaterError) -> None:
    message = str(error)
    check = next((name for words, name in _PUBLISHED_CHECKS if words in message), "records")
    advice, detail, offset = None, "", None
    if check == "record count":
        offset = len(data) - batch_format.FOOTER_BYTES + 1
    elif " of the block" in message and data[-batch_format.FOOTER_BYTES] == Compression.NONE:
        # Without compression the block is the beginning of the object.
        offset = offset_in(message)
        if data.startswith(_ZSTD_FRAME):
            detail = "It begins as a zstd frame does: is its compression code damaged?"
    try:
        lenient = batch_format.decode_batch(data, lenient=True)
    except _UNREADABLE:
        if check in ("compression", "version"):
            detail = "It is no native batch either: it does not begin with HWB1"
        report.fail(error, check, offset=offset, detail=detail)
        return
    detail = f"Other implementations read it all the same, as {len(lenient):,} records"
    advice = (
        "If those records are right, let the stream read leniently (stream alter … --set "
        "v1_reading=lenient); else restore it from a backup."
    )
    report.fail(error, check, offset=offset, detail=detail, advice=advice)


_PUBLISHED_CHECKS: Final = (
    ("its footer alone takes", "length"),
    ("compression code", "compression"),
    ("batch version", "version"),
    ("frame", "decompression"),
    ("zstd block", "decompression"),
    ("record_count", "record count"),
    ("is cut off", "records"),
    ("follow the last of", "bytes after the last record"),
    ("at most", "size"),
)


def _judge_native(report: InspectionReport, source: InspectedObject, error: HeadwaterError) -> None:
    """Which of the checks that a reader makes, in its order, is the one that failed, and where."""
    check, offset, detail = next(_failed_checks(source.data))
    advice = None
    if check == "contents" and _is_of_another_name(source):
        check, offset = "name", len(source.data) - _ID_FROM_END
        detail = "Its bytes are whole, but it is stored under another batch's name"
        advice = "Find out who copied or renamed it, and restore the batch that belongs there."
    report.fail(error, check, offset=offset, detail=detail, advice=advice)


def _is_of_another_name(source: InspectedObject) -> bool:
    name = _ulid(source.key)
    try:
        return name is not None and native.decode_batch(source.data).batch_id != name
    except _UNREADABLE:
        return False


def _failed_checks(data: bytes) -> Iterator[FailedCheck]:
    size = len(data)
    if size < native.OVERHEAD_BYTES:
        yield FailedCheck("length")
        return
    if data[:4] != native.MAGIC:
        yield FailedCheck("magic", 0)
    if data[-4:] != native.MAGIC:
        last = data.rfind(native.MAGIC)
        detail = "Its beginning is that of a batch: it was cut off, or its end is damaged"
        if last > 0:
            detail = (
                f"The end of a batch is at offset {last:,}, and {size - last - 4:,} bytes follow it"
            )
        yield FailedCheck("magic at the end", size - 4, detail)
    at = size - native.FOOTER_BYTES
    try:
        footer = native.read_footer(data)
    except _UNREADABLE:
        yield FailedCheck("footer", at)
        return
    stated = native.OVERHEAD_BYTES + footer.records_bytes + footer.calls_bytes
    sizes = FailedCheck("sizes", at, f"The footer tells of {stated:,} bytes")
    yield from failed_size(stated, size, sizes)
    yield from failed_checksum(data, size - 12)
    if data[4] not in tuple(Compression):
        yield FailedCheck("compression", 4)
    yield FailedCheck("contents", None, "The checksum matches: it was written so")


def _said_by_footer(data: bytes) -> dict[str, Any]:
    """What a footer that can be read says of a batch that cannot; nothing proves it."""
    try:
        footer = native.read_footer(data)
    except _UNREADABLE:
        return {}
    return {
        "id_in_footer": footer.batch_id,
        "records_in_footer": footer.rows,
        "calls_in_footer": footer.calls,
    }


def _ulid(name: str) -> str | None:
    """The name, if it is one that a batch has."""
    if len(name) != ULID_LENGTH:
        return None
    try:
        decode_ulid(name)
    except Refused:
        return None
    return name


def _call_rows(batch: native.Batch) -> list[dict[str, Any]]:
    listed = batch.calls.columns.slice(0, CALLS_SHOWN + 1).to_pylist()
    ends = [call["start_index"] for call in listed[1:]] + [batch.records.num_rows]
    return [
        {
            "call": number,
            "first_record": call["start_index"],
            "records": end - call["start_index"],
            "ingestion_time_ms": call["ingestion_time_ms"],
            "metadata": call["metadata"],
        }
        for number, (call, end) in enumerate(zip(listed, ends, strict=True))
    ][:CALLS_SHOWN]
