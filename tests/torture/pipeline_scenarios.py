"""Appends that are handed in without waiting for each other, under LSNs that are fixed before.

As a leader does it whose queue fixes them: of one record or of thousands, ready made or not, with
columns that come and go. The disk may be full for a moment, the line too long, a task cancelled.
Then whatever did not land is handed in again, in its order, as the drafts it was.

- appends land in the order of their calls: where nothing goes wrong, none is refused;
- what was refused can be handed in again as it is, and is there once;
- every record is where it was meant to be, with the columns that it was given;
- rows whose columns differ share segments, unless a column has another type.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass

import pyarrow as pa

from headwater.core import runtime
from headwater.core.errors import Conflict, NoSpace, Unavailable
from headwater.log import Group, PreparedAppend, SpoolConfig, prepare_append
from headwater.testing import Scenario, Simulation, simulate
from headwater.testing.disk import CrashKind, FaultyDisk
from tests.log.given import hashes, numbered, opened, read_now
from tests.torture.surroundings import require

SIZES = (1, 1, 3, 40, 900, 2500)
"""Records of an append; the larger ones are encoded on a thread."""
TERM = 3


@dataclass
class Sent:
    """An append, and what it is made of."""

    first_lsn: int
    records: pa.RecordBatch
    draft: PreparedAppend | None = None

    @property
    def last_lsn(self) -> int:
        return self.first_lsn + int(self.records.num_rows) - 1


def pipelined_history(seed: int) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        await PipelinedHistory(simulation).run()

    return simulate(main, seed=seed, replay=PIPELINED.replay).fingerprint


class PipelinedHistory:
    """One who hands in, and a disk."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.chance = simulation.random_source("pipeline")
        self.disk = FaultyDisk(seed=self.chance.getrandbits(32))
        self.is_rough = self.chance.random() < 0.6
        self.types_differ = self.chance.random() < 0.2
        config = SpoolConfig(
            sync=self.chance.choice(("always", "none")),
            segment_bytes=self.chance.choice((20_000, 1 << 20)),
            queue_bytes=self.chance.choice((5_000, 1 << 20)) if self.is_rough else 1 << 30,
        )
        self.spool = opened(self.disk, config=config)
        self.next_lsn = 1
        self.sent: list[Sent] = []
        self.refused: list[Sent] = []

    async def run(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            appending = [
                runtime.spawn(self._append(), name="append")
                for _ in range(self.chance.randint(1, 8))
            ]
            if self.is_rough and self.chance.random() < 0.3:
                await runtime.sleep(self.chance.choice((0.0, 0.001)))
                self.chance.choice(appending).cancel()
            await asyncio.wait(appending)
            for task in appending:
                if not task.cancelled():
                    task.result()
            self.check(self.is_rough or not self.refused, "what came in order was refused")
            await self._again()
        await self.spool.close()
        self._check_log()

    async def _append(self) -> None:
        records = self._records(self.chance.choice(SIZES))
        sent = Sent(self.next_lsn, records)
        if self.chance.random() < 0.4:
            sent.draft = prepare_append(records)
        self.next_lsn += int(records.num_rows)
        self.sent.append(sent)
        if self.is_rough and self.chance.random() < 0.2:
            self.disk.fail_next(self.chance.choice(("append", "create")), errno.ENOSPC)
        await self._hand_in(sent)

    async def _hand_in(self, sent: Sent) -> None:
        what = sent.records if sent.draft is None else sent.draft
        try:
            landed = await self.spool.append(what, term=TERM, first_lsn=sent.first_lsn)
        except (Conflict, NoSpace, Unavailable):
            self.refused.append(sent)
        except asyncio.CancelledError:
            # It may land yet, and keeps its draft until then.
            self.refused.append(Sent(sent.first_lsn, sent.records))
            raise
        else:
            self.check(landed == (sent.first_lsn, sent.last_lsn), f"{landed} is another place")

    async def _again(self) -> None:
        """Whatever is not there, in its order."""
        while self.refused:
            await runtime.sleep(1.0)  # what was cancelled has landed by now, or never will
            waiting, self.refused = sorted(self.refused, key=lambda sent: sent.first_lsn), []
            for sent in waiting:
                if sent.first_lsn > self.spool.current_lsn():
                    await self._hand_in(sent)

    def _records(self, count: int) -> pa.RecordBatch:
        """Records that tell their LSNs, with columns that others may not have."""
        lsns = pa.array(range(self.next_lsn, self.next_lsn + count))
        records = numbered(self.next_lsn, count, size=40)
        for name in self.chance.sample(("a", "b"), self.chance.randint(0, 2)):
            as_text = self.types_differ and self.chance.random() < 0.3
            records = records.append_column(name, lsns.cast(pa.string()) if as_text else lsns)
        return records

    def _check_log(self) -> None:
        self.disk.crash()  # errors that are still to come go with it
        spool = opened(self.disk.after_crash(self.chance, CrashKind.PROCESS_KILL))
        groups = read_now(spool, 0, max_records=1 << 20)
        there = hashes(groups)
        self.check(list(there) == list(range(1, self.next_lsn)), "not all of it is there")
        for sent in self.sent:
            wanted = hashes([Group(TERM, sent.first_lsn, sent.last_lsn, sent.records)])
            found = {lsn: there[lsn] for lsn in wanted}
            self.check(found == wanted, f"other records from {sent.first_lsn} on")
        if not self.types_differ:
            sealed = self.spool.metrics.segments_sealed
            # Each column begins one, once more where none of a whole segment had it.
            most = 2 * (1 + sealed["size"])
            self.check(sealed["schema"] <= most, f"sealed for their columns: {sealed}")

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self.simulation, holds, message)


PIPELINED = Scenario("log", "pipelined", pipelined_history, rounds=2000, sample=30)
SCENARIOS = [PIPELINED]
