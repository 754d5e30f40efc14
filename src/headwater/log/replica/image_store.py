"""Where images of keyed states stand: their LSN and their checksum are in the name.

    …/snapshots/<stream id>/<of>/00000000000000000120-<xxh3-128 of the bytes>.parquet

So the newest is found by listing, an image that is written twice is one, and nothing has to point
at it. A few of the newest are kept: a reader that loses one to that takes a newer one.
"""

from __future__ import annotations

import re
from typing import Final

import xxhash

from headwater.buffer.layout import check_group_name, images_prefix
from headwater.core.errors import Corrupt, NotFound, NotSupported, Refused
from headwater.log.replica.target import Image
from headwater.store import Store

ALL: Final = "all"
_NAME: Final = re.compile(r"(\d{20})-([0-9a-f]{32})\.parquet")


class ImageStore:
    """The images of one partition."""

    UNUSABLE: Final = (Corrupt, NotFound, NotSupported)
    """What reading an image may raise that is no reason to wait."""

    def __init__(
        self, store: Store, stream: str, partition: int, stream_id: str, *, of: str = ALL
    ) -> None:
        """`of` names what a filtered replica is kept from, so that nobody else begins with it."""
        self.prefix = f"{images_prefix(stream, partition, stream_id)}/{check_group_name(of)}"
        self._store = store
        self._of = of
        self._passed_over: set[str] = set()
        self._distrusted: set[str] = set()

    def check_filtered(self) -> None:
        """Refuse to be used by a filtered replica under the name that stands for everything."""
        if self._of == ALL:
            raise Refused(
                "a filtered replica keeps its images under a name of its own: give ImageStore(of=…)"
            )

    async def newest(self, *, below_lsn: int | None = None) -> Image | None:
        """The newest that nobody found unusable."""
        unusable = self._passed_over | self._distrusted
        images = [
            image
            for image in await self._list()
            if image.key not in unusable and (below_lsn is None or image.lsn < below_lsn)
        ]
        return max(images, key=lambda image: (image.lsn, image.key), default=None)

    async def read(self, image: Image) -> bytes:
        """Its bytes, checked. One that cannot be used is passed over from then on."""
        try:
            data = bytes((await self._store.get(image.key)).data)
        except NotFound:
            self.pass_over(image)
            raise
        if image.key != self._key(image.lsn, data):
            self.pass_over(image)
            raise Corrupt(f"{image.key} is not what was written: its checksum is another")
        return data

    async def write(self, lsn: int, data: bytes) -> Image:
        """Store an image of everything through this LSN."""
        key = self._key(lsn, data)
        await self._store.put(key, data)
        # Byte for byte the same: what was distrusted is good after all.
        self._distrusted.discard(key)
        return Image(lsn, key)

    def pass_over(self, image: Image) -> None:
        """Do not name it as the newest any more."""
        self._passed_over.add(image.key)

    async def drop_older(self, keep: int, *, than: Image) -> None:
        """Delete all but the newest few; `than`, and what is newer, stays.

        Whoever wrote it counts on it: newer ones of others may turn out to be unreadable.
        """
        images = sorted(await self._list(), key=lambda image: image.lsn)
        for image in images[:-keep]:
            if image.lsn < than.lsn:
                await self._store.delete(image.key)

    async def distrust(self, from_lsn: int) -> None:
        """Pass those over that are there and reach this LSN."""
        self._distrusted |= {image.key for image in await self._list() if image.lsn >= from_lsn}

    async def drop_distrusted(self) -> None:
        """Delete them."""
        for key in sorted(self._distrusted):
            await self._store.delete(key)
            self._distrusted.discard(key)

    async def _list(self) -> list[Image]:
        found = []
        async for meta in self._store.list(f"{self.prefix}/"):
            match = _NAME.fullmatch(meta.key.rpartition("/")[2])
            if match is not None:
                found.append(Image(int(match[1]), meta.key))
        return found

    def _key(self, lsn: int, data: bytes) -> str:
        return f"{self.prefix}/{lsn:020d}-{xxhash.xxh3_128_hexdigest(data)}.parquet"
