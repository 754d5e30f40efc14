"""Replication slots: what the log is kept for.

Enters: positions of replicas, limits, what the log still has.
Leaves: the LSN above which the log is kept, how a replica resumes, `slots.json` in the store.

    slot            one slot: its state, limits, and how its replica resumes
    slot_register   all slots as one stored value, fenced by the leader's epoch
    slot_writer     the leader's slots in memory, and writing them at a bounded rate

Always holds: positions of a generation only rise; nothing that a valid slot needs is pruned, also
if the leader dies at once; slots that cannot be read free nothing; a dead slot holds no more than
its limits.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

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
    from headwater.log.slots.slot_writer import LeaderSlots, SlotWriter

__all__ = [
    "BootstrapPlan",
    "FullRebootstrap",
    "Invalidation",
    "InvalidationCause",
    "LagClock",
    "LeaderSlots",
    "NoBootstrap",
    "PartialResync",
    "ResumeMode",
    "RetentionLimits",
    "Slot",
    "SlotLag",
    "SlotRegister",
    "SlotStatus",
    "SlotTable",
    "SlotWriter",
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
        "slot_writer": "LeaderSlots SlotWriter",
    },
)
