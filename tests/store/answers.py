"""What a store or a network may answer, and a store that is answered so."""

from __future__ import annotations

from headwater.core.errors import Throttled, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import Store
from tests.store.scripted import Scripted

MINE, OTHERS = b"token-1 mine", b"token-2 others"
TOKEN = b"token-1"
DOWN = Unavailable("500 InternalError")
SLOW_DOWN = Throttled("503 SlowDown")


def given(*, policy: RetryPolicy | None = None) -> tuple[Scripted, Store]:
    backend = Scripted()
    return backend, Store(backend, policy=policy)


async def keys_of(store: Store, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.key async for meta in store.list(prefix, start_after=start_after)]
