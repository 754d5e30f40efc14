"""The write coordinator: one ordered writer for any kind of state.

Enters: writes, from named channels. Leaves: frozen deltas to a flusher, in order, and views of
everything written so far.

    coordinator    wires it, starts and stops it
    channel        bounded ways in, taken from in turn, which can be paused
    writer         gives write epochs, applies to the delta, freezes it
    flushing       hands frozen deltas to the flusher, one at a time
    view           what readers see; published before the watermark that announces it
    subscriber     following the views, and knowing how far a follower has come
    handle         what writers hold: a way in, and a promise for each write
    delta          what a user brings: `Delta` and `Flusher`
    blocking       the same from threads

Always holds: write epochs are dense from 1; durable ≤ written ≤ applied; every view shows a
prefix of the writes; a failure reaches everybody who waits, and nobody waits for ever.
"""

from headwater.coordinator.blocking import BlockingCoordinator
from headwater.coordinator.coordinator import WriteCoordinator
from headwater.coordinator.delta import (
    ChannelConfig,
    CoordinatorConfig,
    Delta,
    Durability,
    Flusher,
    Froze,
    Stamped,
)
from headwater.coordinator.errors import (
    ApplyFailed,
    Backpressure,
    FlushFailed,
    MessageLost,
    Shutdown,
    WriteTimeout,
)
from headwater.coordinator.handle import ChannelHandle, PauseHandle, WriteHandle
from headwater.coordinator.view import View, ViewMonitor, ViewSubscriber
from headwater.coordinator.watermarks import CoordinatorMetrics

__all__ = [
    "ApplyFailed",
    "Backpressure",
    "BlockingCoordinator",
    "ChannelConfig",
    "ChannelHandle",
    "CoordinatorConfig",
    "CoordinatorMetrics",
    "Delta",
    "Durability",
    "FlushFailed",
    "Flusher",
    "Froze",
    "MessageLost",
    "PauseHandle",
    "Shutdown",
    "Stamped",
    "View",
    "ViewMonitor",
    "ViewSubscriber",
    "WriteCoordinator",
    "WriteHandle",
    "WriteTimeout",
]
