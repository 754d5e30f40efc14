"""Segments as JSON in a store: what jobs ask of a storage, without Parquet."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.core import runtime
from headwater.core.errors import Corrupt, Refused
from headwater.log.record.group import Group
from headwater.store import ObjectMeta
from headwater.tier import SegmentId, SegmentMetadata
from headwater.tier.events import NO_BROKER, unstamp
from headwater.tier.segments import ParquetSegments

FOLDER = "plain"


@dataclass(frozen=True)
class PlainSegment:
    """What is stored of a segment."""

    segment_id: SegmentId
    runs: list[tuple[int, int, list[str]]]
    """First LSN, term, values."""
    max_timestamp_ms: int

    @property
    def first_lsn(self) -> int:
        return self.runs[0][0]

    @property
    def last_lsn(self) -> int:
        return self.runs[-1][0] + len(self.runs[-1][2]) - 1

    @property
    def data(self) -> bytes:
        return json.dumps([str(self.segment_id.id), self.runs]).encode()

    @property
    def metadata(self) -> SegmentMetadata:
        epochs: dict[int, int] = {}
        for first_lsn, term, _ in self.runs:
            epochs.setdefault(term, first_lsn)
        return SegmentMetadata(
            self.segment_id,
            self.first_lsn,
            self.last_lsn,
            NO_BROKER,
            self.max_timestamp_ms,
            0,
            tuple(epochs.items()),
            len(self.data),
            custom_metadata=zlib.crc32(self.data).to_bytes(4, "big"),
        )


class PlainStorage(ParquetSegments):
    """Segments as JSON instead of Parquet."""

    async def prepare(
        self,
        first_lsn: int,
        last_lsn: int,
        groups: AsyncIterator[Group],
        *,
        merged_from: Sequence[SegmentMetadata] = (),
        columns: pa.Schema | None = None,
    ) -> PlainSegment:
        runs: list[tuple[int, int, list[str]]] = []
        at = first_lsn
        async for group in groups:
            if group.first_lsn != at or (runs and runs[-1][1] > group.term):
                raise Refused(f"{group.first_lsn} of term {group.term} where {at} is due")
            values = group.records.column(0).to_pylist()
            runs.append((group.first_lsn, group.term, [value.decode() for value in values]))
            at = group.last_lsn + 1
        if at != last_lsn + 1:
            raise Refused(f"{at} to {last_lsn} are missing")
        newest_ms = max((one.max_timestamp_ms for one in merged_from), default=runtime.wall_ms())
        segment_id = SegmentId(self._partition, uuid.UUID(bytes=runtime.new_token()))
        return PlainSegment(segment_id, runs, newest_ms)

    async def copy(self, prepared: Any) -> None:
        segment_id = prepared.metadata.segment_id
        token = str(segment_id.id).encode()
        await self._store.put_if_absent(plain_key(segment_id), prepared.data, token=token)

    async def fetch(
        self, segment: SegmentMetadata, first_lsn: int, end_lsn: int
    ) -> AsyncGenerator[Group, None]:
        found = await self._store.get(plain_key(segment.segment_id))
        for group in groups_of(decoded(bytes(found.data))):
            part = group.between(first_lsn, end_lsn - 1)
            if part is not None:
                yield part

    def schema_version(self, segment: SegmentMetadata) -> int:
        return 0

    async def lost_in(self, segment: SegmentMetadata, lsns: range) -> list[range]:
        return []

    async def verify(self, segment: SegmentMetadata) -> Any:
        data = bytes((await self._store.get(plain_key(segment.segment_id))).data)
        if zlib.crc32(data).to_bytes(4, "big") != unstamp(segment.custom_metadata)[1]:
            raise Corrupt(f"{segment.segment_id} is not what was written")

    async def delete(self, segment_id: SegmentId) -> None:
        await self._store.delete(plain_key(segment_id))

    async def objects(self) -> AsyncIterator[tuple[SegmentId | None, ObjectMeta]]:
        async for meta in self._store.list(FOLDER):
            yield SegmentId(self._partition, segment_uuid(meta.key)), meta

    async def lsns_of(self, segment_id: SegmentId) -> range:
        runs = decoded(bytes((await self._store.get(plain_key(segment_id))).data))
        return range(runs[0][0], runs[-1][0] + len(runs[-1][2]))

    async def now_ms(self) -> int:
        await self._store.put("clock", b"")
        return (await self._store.head("clock")).modified_ms


def plain_key(segment_id: SegmentId) -> str:
    return f"{FOLDER}/{segment_id.id}"


def segment_uuid(key: str) -> uuid.UUID:
    return uuid.UUID(key.rpartition("/")[2])


def decoded(data: bytes) -> list[tuple[int, int, list[str]]]:
    try:
        _, runs = json.loads(data)
    except ValueError as error:
        raise Corrupt(f"no segment: {error}") from error
    return [(first, term, values) for first, term, values in runs]


def groups_of(runs: list[tuple[int, int, list[str]]]) -> list[Group]:
    groups = []
    for first_lsn, term, values in runs:
        column = pa.array([value.encode() for value in values], pa.binary())
        records = pa.record_batch([column], names=["_value"])
        groups.append(Group(term, first_lsn, first_lsn + len(values) - 1, records))
    return groups
