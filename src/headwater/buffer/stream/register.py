"""The register `stream.json`: read, and changed by conditional writes alone.

Always holds:

- the versions that a stream needs are checked before anything else of it is believed, and before
  anything is written over it: what a later version added would be lost;
- the register is never deleted. A slow delete could remove that of a later stream, and with it
  the proof of which objects are whose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headwater.buffer.layout import check_stream_name, stream_key
from headwater.buffer.stream.config import StreamConfig, decode_config, encode_config
from headwater.core.errors import Conflict, Corrupt, NotFound, Refused
from headwater.store import Register, Store


def check_store(store: Any) -> None:
    """Refuse what is no store: its address, most likely."""
    if isinstance(store, str):
        raise Refused(
            "a store is needed here, not its address: open it first, as in "
            f"headwater.open_store({store!r}), and close it when you are done"
        )
    if not isinstance(store, Store):
        raise Refused(f"a store is needed here (headwater.open_store), not {type(store).__name__}")


class StreamRegister:
    """What one stream is, in the store. Cheap; for one operation at a time."""

    def __init__(self, store: Store, name: str) -> None:
        check_store(store)
        self._name = check_stream_name(name)
        self._url = store.url
        # Raw: the versions in the value decide whether the rest of it can be understood.
        self._register = Register(store, stream_key(name), msgspec.Raw)

    async def read(self, *, writing: bool) -> StreamConfig:
        """What is there, also of a stream that was deleted; `NotFound` if none ever was."""
        try:
            raw = (await self._register.read()).value
        except NotFound as error:
            raise self._missing() from error
        return decode_config(self._name, raw, writing=writing)

    async def read_live(self, *, writing: bool) -> StreamConfig:
        """What is there of a stream that exists; `NotFound` if it does not."""
        return self._live(await self.read(writing=writing))

    async def update(self, change: Callable[[StreamConfig | None], StreamConfig]) -> StreamConfig:
        """Change what is there. `change` only computes; what it raises, nothing is written."""

        def change_raw(raw: msgspec.Raw | None) -> msgspec.Raw:
            now = None if raw is None else decode_config(self._name, raw, writing=True)
            after = change(now)
            return raw if raw is not None and after == now else encode_config(after)

        stored = (await self._register.update(change_raw)).value
        return decode_config(self._name, stored, writing=True)

    async def replace_damaged(self, config: StreamConfig) -> None:
        """Put a tombstone where a register stands that cannot be read."""
        encoded = encode_config(config)

        def replace(raw: msgspec.Raw | None) -> msgspec.Raw:
            if raw is not None:
                try:
                    current = decode_config(self._name, raw, writing=True)
                except Corrupt:
                    return encoded
                raise Conflict(f"stream {self._name!r} was mended meanwhile", current=current)
            return encoded

        try:
            await self._register.replace_damaged(encoded)
        except Refused:
            # The register is whole, and what it says is not what a stream is.
            await self._register.update(replace)

    async def update_live(
        self, stream_id: str, change: Callable[[StreamConfig], StreamConfig]
    ) -> StreamConfig:
        """Change this stream; `Conflict` if another has its name by now, `NotFound` if none."""

        def change_live(now: StreamConfig | None) -> StreamConfig:
            if now is None:
                raise self._missing()
            return change(self._same(self._live(now), stream_id))

        return await self.update(change_live)

    def _live(self, config: StreamConfig) -> StreamConfig:
        if not config.is_live:
            raise NotFound(f"stream {self._name!r} was deleted")
        return config

    def _same(self, config: StreamConfig, stream_id: str) -> StreamConfig:
        if config.id != stream_id:
            raise Conflict(
                f"stream {self._name!r} was deleted and created again meanwhile: the one that was "
                f"meant had the id {stream_id}",
                current=config,
            )
        return config

    def _missing(self) -> NotFound:
        return NotFound(f"there is no stream {self._name!r} in {self._url}")
