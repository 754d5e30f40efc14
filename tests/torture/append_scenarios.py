"""Tasks that append to one spool at once, are cancelled, and see it closed under them.

Their columns differ, some bring LSNs that are not the next, and some are of a term that is over.

- LSNs are dense, in the order of the bytes, and each append is where it was told to be;
- what was acknowledged is there with every column that it was given;
- each record is there once at most, and the records of one task are in its order;
- an append that was refused is not there; one whose task was cancelled may be;
- nobody waits for ever, and what waited when the log was closed is written or refused;
- a copy that follows meanwhile is never shown a gap.
"""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused
from headwater.log import Group, Spool, SpoolConfig
from headwater.log.record.group import LOG_COLUMNS
from headwater.testing import Scenario, Simulation, simulate
from headwater.testing.disk import FaultyDisk
from tests.log.given import everything, found, hashes, opened, stored_groups, values
from tests.torture.surroundings import require

TASKS = 6
APPENDS = 8
ENDS_WITHIN_S = 600.0
BESIDE: dict[str, object] = {"_key": b"k", "_rid": 7, "_collection": "c", "a": 1}
"""Columns that an append may have, the last one a stream's own."""


def append_history(seed: int) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        await AppendHistory(simulation).run()

    return simulate(main, seed=seed, replay=APPENDS_AT_ONCE.replay).fingerprint


class AppendHistory:
    """Writers, a reader, somebody who tends the log, and the end of it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.disk = FaultyDisk(seed=simulation.random.getrandbits(32))
        self.spool = self._opened()
        self.told: dict[int, bytes] = {}
        self.hashes: dict[int, int] = {}
        """LSN → hash of the record that was acknowledged there."""
        self.refused: set[bytes] = set()
        self.shown = 0

    def _opened(self) -> Spool:
        config = SpoolConfig(
            sync=self.random.choice(("always", 1.0, "none")),
            segment_bytes=self.random.choice((400, 4000, 1 << 20)),
            queue_bytes=self.random.choice((1000, 1 << 20)),
        )
        return opened(self.disk, config=config)

    async def run(self) -> None:
        writers = [runtime.spawn(self._write(name), name=f"writer{name}") for name in range(TASKS)]
        beside = [
            runtime.spawn(self._follow(), name="reader"),
            runtime.spawn(self._tend(), name="tend"),
        ]
        if self.random.random() < 0.5:
            await runtime.sleep(self.random.uniform(0, 5.0))
            await self.spool.close()
        done, late = await asyncio.wait(writers, timeout=ENDS_WITHIN_S)
        self.check(not late, f"{len(late)} writers wait for ever")
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        await self.spool.close()
        for ended in [*done, *beside]:
            if not ended.cancelled():
                ended.result()
        self._check_log()

    async def _write(self, name: int) -> None:
        for number in range(APPENDS):
            await runtime.sleep(self.random.choice((0.0, 0.0, self.random.random())))
            value = b"%d/%d" % (name, number)
            records = self._records(value)
            append = self.spool.append(records, term=self._term(), first_lsn=self._first_lsn())
            appending = runtime.spawn(append, name="append")
            if self.random.random() < 0.1:
                await runtime.sleep(self.random.choice((0.0, 0.001)))
                appending.cancel()
            await asyncio.wait((appending,))
            if appending.cancelled():
                continue
            try:
                landed = appending.result()
            except OutcomeUnknown:
                continue
            except HeadwaterError:
                self.refused.add(value)
                continue
            self.told |= dict.fromkeys(range(landed.first_lsn, landed.last_lsn + 1), value)
            self.hashes |= hashes([Group(1, *landed, records)])

    def _records(self, value: bytes) -> pa.RecordBatch:
        """A few with this value, and with columns that others may not have."""
        records = values(*(value,) * self.random.randint(1, 3))
        for name in self.random.sample(sorted(BESIDE), self.random.randint(0, len(BESIDE))):
            column = pa.array([BESIDE[name]] * len(records), LOG_COLUMNS.get(name))
            records = records.append_column(name, column)
        return records

    def _term(self) -> int:
        return self.random.choice((2,) * 60 + (1, 3))

    def _first_lsn(self) -> int | None:
        """Mostly whatever is the next; or what was the next a moment ago."""
        return self.spool.current_lsn() + 1 if self.random.random() < 0.3 else None

    async def _follow(self) -> None:
        with contextlib.suppress(Refused):  # it was closed
            while True:
                await self.spool.wait_for_lsn_after(self.shown)
                groups = await self.spool.read_since(self.shown, max_records=5)
                self.check(bool(groups), "told of records that are not there")
                for lsn in found(groups):
                    self.check(lsn == self.shown + 1, f"{lsn} was shown after {self.shown}")
                    self.shown = lsn

    async def _tend(self) -> None:
        with contextlib.suppress(Refused):
            while True:
                await runtime.sleep(self.random.random())
                if self.random.random() < 0.3:
                    await self.spool.seal()
                else:
                    await self.spool.tend()

    def _check_log(self) -> None:
        spool = opened(self.disk)
        records = everything(spool)
        self.check(list(records) == list(range(1, len(records) + 1)), "a gap")
        for lsn, value in self.told.items():
            self.check(records.get(lsn) == value, f"{value!r} is not at {lsn}")
        there = hashes(stored_groups(spool))
        for lsn, number in self.hashes.items():
            self.check(there.get(lsn) == number, f"the record at {lsn} is not what was given")
        self.check(not self.refused & set(records.values()), "what was refused is there")
        for name in range(TASKS):
            mine = [value for value in records.values() if value.startswith(b"%d/" % name)]
            runs = [value for place, value in enumerate(mine) if mine[:place][-1:] != [value]]
            numbers = [int(value.partition(b"/")[2]) for value in runs]
            self.check(numbers == sorted(set(numbers)), f"writer {name}: {numbers}")

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self.simulation, holds, message)


APPENDS_AT_ONCE = Scenario("log", "appends", append_history, rounds=2000, sample=40)
SCENARIOS = [APPENDS_AT_ONCE]
