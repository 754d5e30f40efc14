"""The seam: whatever the rooms above need from the outside world, and the words they share.

Enters: the operating system's clock, randomness, threads and disk, or a simulator's.
Leaves: `runtime` (time, chance, ids, tasks, blocking work), `Disk`, the error tree, named
limits, checksummed frames, back-off, counters, `Secret`.

Always holds:

- no other room touches the wall clock, a random source, a thread or a task directly;
- an error's kind says what the caller is to do (see `errors`);
- a secret never prints and never pickles.
"""

from headwater.core import errors, frame, limits, runtime
from headwater.core.disk import Disk, DiskFile, FileStat, OsDisk
from headwater.core.metrics import Histogram
from headwater.core.retry import Budget, RetryPolicy
from headwater.core.runtime import Runtime, UlidFactory, decode_ulid, encode_ulid, ulid_time_ms
from headwater.core.settings import Secret

__all__ = [
    "Budget",
    "Disk",
    "DiskFile",
    "FileStat",
    "Histogram",
    "OsDisk",
    "RetryPolicy",
    "Runtime",
    "Secret",
    "UlidFactory",
    "decode_ulid",
    "encode_ulid",
    "errors",
    "frame",
    "limits",
    "runtime",
    "ulid_time_ms",
]
