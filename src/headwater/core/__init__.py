"""The seam to the outside world, and shared vocabulary. For builders; users: docs/api.md.

    runtime    time, randomness, ids, tasks, blocking work
    disk       files whose durability matters, and the locks beside them (disk_locks)
    portal     an event loop on a thread, for code that blocks; forks and signals
    errors     the tree of errors: the kind of an error says what the caller does next
    limits     named limits
    settings   names, units and bounds of settings; `Secret`
    retry      how long to wait before the next attempt
    lease      how much time has passed, where safety depends on it
    metrics    counters and histograms, and the registry of those that are in use

Always holds:

- no other package touches the wall clock, a random source, a thread or a task directly;
- a secret never prints and never pickles.
"""

from headwater.core import errors, limits, portal, runtime
from headwater.core.retry import RetryPolicy
from headwater.core.settings import Secret

__all__ = [
    "RetryPolicy",
    "Secret",
    "errors",
    "limits",
    "portal",
    "runtime",
]
