"""The write coordinator: one ordered writer for any state. For builders; users: docs/api.md.

Writes arrive on named channels. They are applied to a delta in memory; frozen deltas go to a
flusher, in order, and every write is visible in a consistent view.

    coordinator    connects the parts, starts and stops them
    channel        bounded queues of writes, and the handles that writers hold
    writer         the two loops: applying and freezing; flushing
    contract       what a user provides and gets: `Delta`, `Flusher`, settings, errors
    progress       how far writes have come, what readers see, the metrics

Always holds: write epochs are dense from 1; durable ≤ written ≤ applied; every view shows all
writes up to some write epoch; a failure reaches every waiting call, so that none waits without end.
"""

from headwater.coordinator.channel import ChannelHandle, PauseHandle, WriteHandle
from headwater.coordinator.contract import (
    ApplyFailed,
    Backpressure,
    ChannelConfig,
    CoordinatorConfig,
    Delta,
    DeltaView,
    Durability,
    Flusher,
    FlushFailed,
    FrozenDelta,
    MessageLost,
    Shutdown,
    WriteTimeout,
)
from headwater.coordinator.coordinator import WriteCoordinator
from headwater.coordinator.progress import CoordinatorMetrics, View, ViewMonitor, ViewSubscriber

__all__ = [
    "ApplyFailed",
    "Backpressure",
    "ChannelConfig",
    "ChannelHandle",
    "CoordinatorConfig",
    "CoordinatorMetrics",
    "Delta",
    "DeltaView",
    "Durability",
    "FlushFailed",
    "Flusher",
    "FrozenDelta",
    "MessageLost",
    "PauseHandle",
    "Shutdown",
    "View",
    "ViewMonitor",
    "ViewSubscriber",
    "WriteCoordinator",
    "WriteHandle",
    "WriteTimeout",
]
