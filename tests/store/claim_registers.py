"""A register whose value holds a table of claims, as a group's record does."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headwater.core.errors import NotFound
from headwater.core.retry import RetryPolicy
from headwater.store import Register, Store
from headwater.store.claims import ClaimState, ClaimTable

KEY = "shared"


class SharedValue(msgspec.Struct, frozen=True):
    """What is stored."""

    epoch: int = 0
    table: ClaimTable = ClaimTable()


class TableRegister:
    """A `ClaimRegister` over a store."""

    def __init__(self, store: Store, policy: RetryPolicy | None = None) -> None:
        self.register = Register(store, KEY, SharedValue, policy=policy)

    async def read(self) -> ClaimState:
        try:
            value = (await self.register.read()).value
        except NotFound:
            value = SharedValue()
        return ClaimState(value.epoch, value.table)

    async def update(self, change: Callable[[ClaimState], ClaimState]) -> ClaimState:
        def changed(now: SharedValue | None) -> SharedValue:
            now = now or SharedValue()
            return SharedValue(*change(ClaimState(now.epoch, now.table)))

        value = (await self.register.update(changed)).value
        return ClaimState(value.epoch, value.table)
