"""Replication slots: what the log is kept for.

Enters: positions of replicas, limits, what the log still has.
Leaves: the LSN above which the log is kept, how a replica goes on, `slots.json` in the store.

    slot            one slot, and the words for its state
    table           all slots as one value; how a leader's view joins what is stored
    retention       floor, limits, status: decisions without a clock or a store
    resume          how a replica that comes back goes on
    lag_clock       a lag in records, told in seconds
    slot_register   the stored table, fenced by the leader's epoch
    book            the slots from moment to moment, over what is stored
    keeper          writes the book, at a bounded rate

Always holds: positions of a generation only rise; nothing that a valid slot needs is pruned, also
if the leader dies at once; slots that cannot be read free nothing; a dead slot holds no more than
its limits.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.log.slots.slot import (
        BootstrapPlan,
        FullRebootstrap,
        Invalidation,
        InvalidationCause,
        LagClock,
        NoBootstrap,
        PartialResync,
        ResumeMode,
        RetentionLimits,
        Slot,
        SlotLag,
        SlotStatus,
        exceeded_limit,
        is_comparable,
        plan_bootstrap,
        plan_resume,
        retention_floor,
        slot_status,
    )
    from headwater.log.slots.slot_register import SlotRegister, SlotTable
    from headwater.log.slots.slot_writer import SlotBook, SlotKeeper

__all__ = [
    "BootstrapPlan",
    "FullRebootstrap",
    "Invalidation",
    "InvalidationCause",
    "LagClock",
    "NoBootstrap",
    "PartialResync",
    "ResumeMode",
    "RetentionLimits",
    "Slot",
    "SlotBook",
    "SlotKeeper",
    "SlotLag",
    "SlotRegister",
    "SlotStatus",
    "SlotTable",
    "exceeded_limit",
    "is_comparable",
    "plan_bootstrap",
    "plan_resume",
    "retention_floor",
    "slot_status",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "slot": "BootstrapPlan FullRebootstrap Invalidation InvalidationCause LagClock NoBootstrap "
        "PartialResync ResumeMode RetentionLimits Slot SlotLag SlotStatus exceeded_limit "
        "is_comparable plan_bootstrap plan_resume retention_floor slot_status",
        "slot_register": "SlotRegister SlotTable",
        "slot_writer": "SlotBook SlotKeeper",
    },
)
