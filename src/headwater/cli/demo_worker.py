"""One process of the demo: appends entries, updates a register, and reports what was accepted.

    python -m headwater.cli.demo_worker URL RUN ENTRIES SECONDS REPORT

A line goes to the report only after the store has accepted what it tells of, so whatever is
in the report must be in the store. The process may be killed at any instant; what it had under
way then may have been accepted without a line.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from headwater.cli.loop import run as run_loop
from headwater.core import runtime
from headwater.core.backoff import RetryPolicy
from headwater.store import Register, Sequence, open_store

SEQUENCE: Final = "entries"
REGISTER: Final = "updates"
# A local store answers in milliseconds: whoever lost a race need not stand back for long.
EAGER: Final = RetryPolicy(base_s=0.004, cap_s=0.1)

Updates = dict[str, int]


async def work(url: str, run: str, entries: int, seconds: float, report: str) -> None:
    """Append and update until everything is done or the time is up."""
    until_s = runtime.monotonic_s() + seconds
    line = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def count(now: Updates | None) -> Updates:
        before = now or {}
        return {**before, run: before.get(run, 0) + 1}

    async with open_store(url) as store:
        sequence = Sequence(store, SEQUENCE, policy=EAGER)
        register = Register(store, REGISTER, Updates, policy=EAGER)
        for index in range(entries):
            if runtime.monotonic_s() >= until_s:
                break
            entry = f"{run}:{index}"
            number = await sequence.append(entry.encode())
            os.write(line, f"entry {entry} {number}\n".encode())
            revision = await register.update(count)
            os.write(line, f"update {run} {revision.number}\n".encode())
    os.close(line)


if __name__ == "__main__":
    _url, _run, _entries, _seconds, _report = sys.argv[1:]
    run_loop(work(_url, _run, int(_entries), float(_seconds), _report))
