"""Object storage: the one thing that must survive. For builders; users: docs/api.md.

Enters: an address (`memory://`, `file://`, `s3://`, `gs://`, `az://`) and names of credentials.
Leaves: `Store` (get, put, put-if-absent, put-if-unchanged, list, delete, head, streams), and
building blocks on it: `Register` (read, change, write if unchanged), `NumberedLog` (an append log
of numbered objects above a floor), and the sharing of names among processes (`claims`, `claimant`).

In files:

    address, locations      which store an address and its options mean; files and their URLs
    store, stats            checked keys, attempts, settled outcomes; counters and costs
    register, numbered_log  changes and appends that know whether they landed
    objects, backend        objects, keys and versions; the seam, and a backend in memory
    local, cloud            the backends: one attempt, honestly reported
    conformance, …_checks, …_races   whether a store keeps the promises that all this needs

Always holds:

- an unknown outcome is settled by a read, or raised as `OutcomeUnknown`; it is never guessed;
- a write that was reported is durable, and no reader ever sees a part of an object;
- the content of a conditional write never recurs (each has a nonce);
- waits, attempts, sizes and keys are bounded by named limits;
- credentials are names: no pickle, repr, log line or traceback holds one.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.store.address import open_store
    from headwater.store.backend import (
        IF_ABSENT,
        Backend,
        Condition,
        IfAbsent,
        MemoryBackend,
        PreconditionFailed,
        Unreachable,
    )
    from headwater.store.conformance import StoreReport, check_store
    from headwater.store.local import LocalBackend
    from headwater.store.numbered_log import LeasedFloor, LogFloor, NumberedLog, next_settling
    from headwater.store.objects import (
        ByteRange,
        Object,
        ObjectMeta,
        Page,
        Parts,
        Version,
        check_key,
        check_prefix,
    )
    from headwater.store.register import Register, Revision
    from headwater.store.stats import OperationStats, StoreStats
    from headwater.store.store import Store

__all__ = [
    "Backend",
    "ByteRange",
    "Condition",
    "IF_ABSENT",
    "IfAbsent",
    "LeasedFloor",
    "LocalBackend",
    "LogFloor",
    "MemoryBackend",
    "NumberedLog",
    "Object",
    "ObjectMeta",
    "OperationStats",
    "Page",
    "Parts",
    "PreconditionFailed",
    "Register",
    "Revision",
    "Store",
    "StoreReport",
    "StoreStats",
    "Unreachable",
    "Version",
    "check_key",
    "check_prefix",
    "check_store",
    "next_settling",
    "open_store",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "address": "open_store",
        "backend": "Backend Condition IF_ABSENT IfAbsent MemoryBackend PreconditionFailed "
        "Unreachable",
        "conformance": "StoreReport check_store",
        "local": "LocalBackend",
        "numbered_log": "LeasedFloor LogFloor NumberedLog next_settling",
        "objects": "ByteRange Object ObjectMeta Page Parts Version check_key check_prefix",
        "register": "Register Revision",
        "stats": "OperationStats StoreStats",
        "store": "Store",
    },
)
