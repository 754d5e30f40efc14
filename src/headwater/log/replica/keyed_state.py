"""A keyed state: the latest record of each key of each collection, with its LSN.

It lives in memory. After a crash it is loaded from its last image in the store: everything through
that LSN is durable, and the slot keeps the log after it.

| operation | effect |
| --- | --- |
| insert, update | the record is the latest of its key |
| delete | the key is removed |
| refresh with `_refresh_records` | they replace the whole collection |
| refresh without | the record is the latest of its key |

A record's key is `_key`; where that is null, `_rid`. A record with neither is skipped and counted.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headwater.buffer.layout import check_group_name, images_prefix
from headwater.buffer.records import OPERATION, Operation
from headwater.core import limits, runtime
from headwater.core.errors import (
    Corrupt,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log.record.arrow_types import without_views
from headwater.log.record.group import COLLECTION, REFRESH_RECORDS, Group, GroupRing
from headwater.log.record.hashes import hashes_between
from headwater.log.replica.contract import Image
from headwater.log.replica.image import ImageContent, decode_image, encode_image
from headwater.log.replica.keyed_table import LSN_COLUMN, Identity, KeyedTable
from headwater.store import Store

_log: Final = logging.getLogger("headwater")
ALL_RECORDS: Final = "all"
_IMAGE_NAME: Final = re.compile(r"(\d{20})-([0-9a-f]{32})\.parquet")
_UNUSABLE: Final = (Corrupt, NotFound, NotSupported)
"""Errors of reading an image after which another one is tried."""


class KeyedState:
    """A `Target` that answers `get` and `scan`."""

    def __init__(
        self,
        states: KeyedStates,
        tables: dict[str, KeyedTable],
        lsn: int,
        *,
        last_hashes: Sequence[int] = (),
    ) -> None:
        """Use `KeyedStates`. `last_hashes` are those of the last records through `lsn`."""
        self._image_lsn = lsn
        self._image_hashes = pa.array(last_hashes, pa.uint64())
        self._states = states
        self._tables = tables
        self._applied_lsn = lsn
        self._durable_lsn = lsn
        self._imaged_s = runtime.monotonic_s()
        self._next_image_s = 0.0
        self._recent = GroupRing(max_bytes=limits.REPLICA_RECENT_BYTES, keeps_last=True)
        # Large groups are applied on a thread, and readers must not see half of one.
        self._mutex = threading.Lock()
        self.records_without_key = 0
        self.images_written = 0
        self.images_failed = 0

    @property
    def applied_lsn(self) -> int:
        return self._applied_lsn

    @property
    def durable_lsn(self) -> int:
        return self._durable_lsn

    @property
    def tend_within_s(self) -> float | None:
        return None

    def get(self, key: Identity, collection: str = "") -> dict[str, Any] | None:
        if not isinstance(key, bytes | int):
            raise Refused(f"keys are bytes, and row ids numbers: {key!r} is neither")
        with self._mutex:
            table = self._tables.get(collection)
            return None if table is None else table.get(key)

    def scan(self, collection: str = "") -> pa.Table:
        """The latest record of every key of a collection, with its `_lsn`.

        `NotSupported` names a column whose types do not fit into one table.
        """
        with self._mutex:
            return self._tables.get(collection, KeyedTable()).scan()

    def scan_parts(self, collection: str = "") -> list[pa.Table]:
        with self._mutex:
            return self._tables.get(collection, KeyedTable()).parts()

    def collections(self) -> list[str]:
        """The collections that have, or had, records."""
        with self._mutex:
            return sorted(self._tables)

    async def apply(self, groups: Sequence[Group], through_lsn: int) -> None:
        for group in groups:
            if group.lost is None:
                if group.nbytes <= limits.DECODE_INLINE_BYTES:
                    self._apply(group)
                else:
                    await runtime.run_blocking(self._apply, group)
            self._recent.extend([group])
            self._applied_lsn = group.last_lsn
        self._applied_lsn = max(self._applied_lsn, through_lsn)

    async def hashes(self, first_lsn: int, last_lsn: int) -> pa.UInt64Array:
        """Hashes of the last few megabytes of the log, and of the last records of its image."""
        parts: list[pa.Array] = []
        next_lsn = first_lsn
        image_first_lsn = self._image_lsn - len(self._image_hashes) + 1
        begins, ends = max(first_lsn, image_first_lsn), min(last_lsn, self._image_lsn)
        if begins <= ends:
            hashes = self._image_hashes.slice(begins - image_first_lsn, ends - begins + 1)
            parts += [pa.nulls(begins - first_lsn, pa.uint64()), hashes]
            next_lsn = ends + 1
        if next_lsn <= last_lsn:
            recent = self._recent.between(next_lsn, last_lsn)
            parts.append(await hashes_between(recent, next_lsn, last_lsn))
        return pa.concat_arrays(parts)

    async def sync(self) -> None:
        """Write an image."""
        if self._durable_lsn == self._applied_lsn:
            return
        lsn = self._applied_lsn
        first_lsn = max(1, lsn - limits.KEYED_IMAGE_HASHES + 1)
        hashes = (await self.hashes(first_lsn, lsn)).to_pylist()
        last_hashes = list(itertools.takewhile(lambda one: one is not None, reversed(hashes)))
        data = await runtime.run_blocking(self._encoded, lsn, last_hashes[::-1])
        image = await self._states.write_image(lsn, data)
        self._durable_lsn, self._imaged_s = lsn, runtime.monotonic_s()
        self.images_written += 1
        # Images that are left because the store is away are deleted with the next one.
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await self._states.drop_older(limits.KEYED_IMAGES_KEPT, than=image)

    async def tend(self) -> None:
        """Write an image if one is due.

        While the store is unavailable, this is tried again soon. If no image can hold the records,
        the state continues without one, and its slot keeps the log until an image can be written.
        """
        now_s = runtime.monotonic_s()
        behind = self._applied_lsn - self._durable_lsn
        interval_s = self._states.image_interval_s
        is_due = behind >= self._states.image_records or now_s - self._imaged_s >= interval_s
        if not behind or not is_due or now_s < self._next_image_s:
            return
        try:
            await self.sync()
        except (Unavailable, OutcomeUnknown):
            self._try_again_in(limits.KEYED_IMAGE_RETRY_S)
        except NotSupported as error:
            _log.warning("a keyed state continues without an image: %s", error)
            self._try_again_in(max(interval_s, limits.KEYED_IMAGE_RETRY_S))

    async def close(self) -> None:
        """Do nothing: there are no resources."""

    def _try_again_in(self, pause_s: float) -> None:
        self.images_failed += 1
        self._next_image_s = runtime.monotonic_s() + pause_s

    def _apply(self, group: Group) -> None:
        lsns = pa.arange(group.first_lsn, group.last_lsn + 1)
        # Of views, Arrow cannot pick rows.
        records = without_views(group.records).append_column(LSN_COLUMN, lsns)
        with self._mutex:
            begins = 0
            for place in _refreshes(records):
                self._put(records.slice(begins, place - begins))
                self._refresh(records.slice(place, 1))
                begins = place + 1
            self._put(records.slice(begins))

    def _put(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        for collection, part in _by_collection(records):
            table = self._tables.setdefault(collection, KeyedTable())
            self.records_without_key += table.put(part)

    def _refresh(self, record: pa.RecordBatch) -> None:
        [(collection, _)] = _by_collection(record)
        values = record.column(REFRESH_RECORDS).flatten()
        lsn = record.column(LSN_COLUMN)[0].as_py()
        self._tables[collection] = KeyedTable.of_refresh(values, lsn)

    def _encoded(self, lsn: int, last_hashes: list[int]) -> bytes:
        with self._mutex:
            scanned = {name: table.parts() for name, table in self._tables.items()}
        return encode_image(scanned, lsn, last_hashes)


class KeyedStates:
    """`Targets` that are keyed states, and the images of one partition. Their folders stay empty.

        …/snapshots/<stream id>/<of>/00000000000000000120-<xxh3-128 of the bytes>.parquet

    The newest image is found by listing, and writing an image twice gives one object. The newest
    three are kept: a reader whose image was deleted uses a newer one.
    """

    kind: Final = "keyed"

    def __init__(
        self,
        store: Store,
        stream: str,
        partition: int,
        stream_id: str,
        *,
        of: str = ALL_RECORDS,
        image_interval_s: float = limits.KEYED_IMAGE_INTERVAL_S,
        image_records: int = limits.KEYED_IMAGE_RECORDS,
    ) -> None:
        """`of` names the filter of a filtered replica: only replicas of that name begin from it."""
        self.prefix = f"{images_prefix(stream, partition, stream_id)}/{check_group_name(of)}"
        self.image_interval_s = image_interval_s
        self.image_records = image_records
        self._store = store
        self._of = of
        self._skipped: set[str] = set()
        self._distrusted: set[str] = set()

    def check_filtered(self) -> None:
        if self._of == ALL_RECORDS:
            raise Refused(
                "a filtered replica keeps its images under a name of its own: give "
                "KeyedStates(of=…)"
            )

    async def open(self, path: str) -> KeyedState:
        """The state of the newest readable image, or an empty one."""
        while (image := await self.newest_image()) is not None:
            try:
                return await self.begin(path, image)
            except _UNUSABLE as error:
                _log.warning("an image of a keyed state is skipped: %s", error)
        return await self.begin(path, None)

    async def begin(self, path: str, image: Image | None) -> KeyedState:
        if image is None:
            return KeyedState(self, {}, 0)
        content = await self.read_image(image)
        tables = await runtime.run_blocking(_tables, content.collections)
        return KeyedState(self, tables, image.lsn, last_hashes=content.last_hashes)

    async def discard(self, path: str) -> None:
        """Do nothing: there are no files."""

    async def newest_image(self, *, below_lsn: int | None = None) -> Image | None:
        unusable = self._skipped | self._distrusted
        images = [
            image
            for image in await self.images()
            if image.key not in unusable and (below_lsn is None or image.lsn < below_lsn)
        ]
        return max(images, key=lambda image: (image.lsn, image.key), default=None)

    async def read_image(self, image: Image) -> ImageContent:
        """The content of an image, checked. An unusable image is skipped from then on."""
        try:
            data = bytes((await self._store.get(image.key)).data)
            if image.key != self._key(image.lsn, data):
                raise Corrupt(
                    f"{image.key} is damaged: its checksum differs from the one in its name"
                )
            return await runtime.run_blocking(decode_image, data, image)
        except _UNUSABLE:
            self._skipped.add(image.key)
            raise

    async def write_image(self, lsn: int, data: bytes) -> Image:
        key = self._key(lsn, data)
        await self._store.put(key, data)
        # The same bytes as a distrusted image: it is good after all.
        self._distrusted.discard(key)
        return Image(lsn, key)

    async def drop_older(self, keep: int, *, than: Image) -> None:
        """Delete all but the newest images; this one and newer ones stay.

        The replica that wrote the image relies on it: newer images of other replicas may be
        unreadable.
        """
        images = sorted(await self.images(), key=lambda image: image.lsn)
        for image in images[:-keep]:
            if image.lsn < than.lsn:
                await self._store.delete(image.key)

    async def distrust(self, from_lsn: int) -> None:
        self._distrusted |= {one.key for one in await self.images() if one.lsn >= from_lsn}

    async def drop_distrusted(self) -> None:
        for key in sorted(self._distrusted):
            await self._store.delete(key)
            self._distrusted.discard(key)

    async def images(self) -> list[Image]:
        images = []
        async for meta in self._store.list(f"{self.prefix}/"):
            match = _IMAGE_NAME.fullmatch(meta.key.rpartition("/")[2])
            if match is not None:
                images.append(Image(int(match[1]), meta.key))
        return images

    def _key(self, lsn: int, data: bytes) -> str:
        return f"{self.prefix}/{lsn:020d}-{xxhash.xxh3_128_hexdigest(data)}.parquet"


def _tables(collections: dict[str, list[pa.Table]]) -> dict[str, KeyedTable]:
    return {
        name: KeyedTable.of(batch for part in parts for batch in part.to_batches())
        for name, parts in collections.items()
    }


def _refreshes(records: pa.RecordBatch) -> list[int]:
    names = records.schema.names
    if OPERATION not in names or REFRESH_RECORDS not in names:
        return []
    is_refresh = pc.equal(records.column(OPERATION), int(Operation.REFRESH))
    mask = pc.and_(pc.fill_null(is_refresh, False), records.column(REFRESH_RECORDS).is_valid())
    return pc.indices_nonzero(mask).to_pylist()  # type: ignore[no-any-return]


def _by_collection(records: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    if COLLECTION not in records.schema.names:
        return [("", records)]
    column = pc.fill_null(records.column(COLLECTION), "")
    names = pc.unique(column).to_pylist()
    if len(names) == 1:
        return [(names[0], records)]
    return [(name, records.filter(pc.equal(column, name))) for name in names]
