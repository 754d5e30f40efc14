"""Pointers of tables and namespaces, as they were first written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headwater.core import runtime
from headwater.store import Store, open_store
from headwater.table.pointers import Pointers
from tests.golden.fixed_runtime import FixedRuntime

HERE = Path(__file__).parent
TABLE = "catalog/tables/shop/orders.json"
NAMESPACE = "catalog/namespaces/shop.json"
LOCATION = "s3://bucket/shop/orders/metadata/00001-5c0d.metadata.json"


async def _written() -> tuple[bytes, bytes]:
    store = open_store("memory://")
    pointers = Pointers(store)
    await pointers.create_namespace("shop", {"owner": "größe"})
    await pointers.point("shop", "orders", None, LOCATION)
    return await _bytes(store, TABLE), await _bytes(store, NAMESPACE)


async def _bytes(store: Store, key: str) -> bytes:
    return bytes((await store.get(key)).data)


async def _read(table: bytes, namespace: bytes) -> tuple[str, dict[str, str]]:
    store = open_store("memory://")
    await store.put(TABLE, table)
    await store.put(NAMESPACE, namespace)
    pointers = Pointers(store)
    return await pointers.location("shop", "orders"), await pointers.namespace("shop")


def test_pointers_are_written_and_read_as_they_always_were() -> None:
    table = (HERE / "table_pointer.1.json").read_bytes()
    namespace = (HERE / "namespace.1.json").read_bytes()
    with runtime.installed(FixedRuntime()):
        assert asyncio.run(_written()) == (table, namespace)
    assert asyncio.run(_read(table, namespace)) == (LOCATION, {"owner": "größe"})
