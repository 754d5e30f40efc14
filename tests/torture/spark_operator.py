"""Who runs a group's query: starts it again, loses and restores checkpoints, and follows cures.

Whatever a query ends with has to say what to do about it, and there has to be a reason for it. Once
nothing goes wrong any more, doing what was said leads to a query that runs to the end.
"""

from __future__ import annotations

import re
from typing import Any

from headwater.buffer.consumer import UnreadableBatch
from headwater.core import runtime
from headwater.core.errors import (
    Damaged,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Trimmed,
    Unavailable,
)
from headwater.spark.option_values import Offsets
from headwater.spark.options import ReadOptions
from headwater.spark.source.checkpoint import NOT_READ, GroupState
from headwater.testing import Process
from tests.torture.spark_driver import Driver, Notes, Overtaken
from tests.torture.spark_world import PATTERN, Held, Life, SparkWorld

ATTEMPTS = 12
"""So many starts lead to a query that runs, once nothing goes wrong."""
WANTED = re.compile(r"stream '(\w+)', partition (\d+): data loss. Wanted (?:from )?offsets? (\d+)")


class Operator:
    """One group's query, in all its lives."""

    def __init__(self, world: SparkWorld, group: str) -> None:
        self.world = world
        self.group = group
        self.is_41 = world.random.random() < 0.25
        self._by_pattern = world.random.random() < 0.4
        starts: tuple[Offsets, Offsets] = ("earliest", "latest")
        self._starting = world.random.choice(starts)
        self._notes = Notes()
        self._restored = False
        self._replaced = False
        """Whether there ever was more than one checkpoint, or more than one start of it."""
        self._is_lenient = False
        self._gives_up = False
        self._running: list[Process] = []

    async def work(self, lives: int) -> None:
        """Start the query again and again, and let whatever happens happen to it."""
        random = self.world.random
        for _ in range(lives):
            self._choose()
            process = self._start(available_now=random.random() < 0.3)
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 10, 100)))
            chance = random.random()
            if chance < 0.2:
                process.freeze(random.expovariate(1.0) * 60)  # a zombie
            if chance >= 0.35:
                process.kill()
            elif random.random() < 0.4:
                # The next one is started beside it, with a new checkpoint.
                self._notes, self._replaced = Notes(), True
        self.stop()

    def stop(self) -> None:
        """End whatever still runs."""
        for process in self._running:
            process.kill()
        self._running.clear()

    async def settle(self) -> None:
        """Nothing goes wrong any more: whatever a query says leads to one that runs to the end."""
        world, told = self.world, []
        for _ in range(ATTEMPTS):
            error = await self._run(self._driver(available_now=True))
            if error is None and await self._is_done():
                return
            told.append(repr(error))
        world.check(False, f"group {self.group} does not get to the end: {told}")

    async def check_all_given(self) -> None:
        """Every record from where the group last began was given to it."""
        world, truth = self.world, self.world.groups[self.group]
        for life in await self._lives():
            held = life.held
            world.check(life in truth.begun, f"group {self.group} never came to read {life}")
            begun = max(truth.begun[life], truth.passed.get(life, 0))
            wanted = set(range(begun, len(world.held[held]) + 1)) - world.damaged[held]
            missing = sorted(wanted - truth.given[life])
            world.check(not missing, f"group {self.group} was never given {missing} of {life}")

    async def check_acknowledged(self) -> None:
        """What the group was given is acknowledged, also the last of it (Spark 4.1 lags)."""
        for life in [] if self.is_41 else await self._lives():
            state, group = await self.world.state(life.held), await self._stored(life.held)
            assert group is not None
            lsn = group.positions[life.held.partition]
            self.world.check(
                lsn == state.next_lsn,
                f"{self.group} acknowledged {lsn} of {state.next_lsn} in {life}",
            )

    async def _lives(self) -> list[Life]:
        """The partitions that the query reads, in the group's present life."""
        lives = []
        for held in filter(self._reads, self.world.live()):
            group = await self._stored(held)
            lives.append(Life(held, -1 if group is None else group.record.resets))
        return lives

    async def _stored(self, held: Held) -> GroupState | None:
        return await self.world.group(self.group, held.stream)

    async def _is_done(self) -> bool:
        """Spark 4.1 reads what was there when it began, and no more."""
        truth, lives = self.world.groups[self.group], await self._lives()
        return all(
            len(self.world.held[life.held])
            <= max(truth.given[life] | self.world.damaged[life.held], default=0)
            or truth.begun.get(life, 0) > len(self.world.held[life.held])
            or truth.passed.get(life, 0) > len(self.world.held[life.held])
            for life in lives
        )

    def _reads(self, held: Held) -> bool:
        return self._by_pattern or held.stream == "s0"

    def _choose(self) -> None:
        """Which checkpoint the next life goes on with."""
        random, notes = self.world.random, self._notes
        chance = random.random()
        if chance < 0.12:
            self._notes, self._replaced = Notes(), True
        elif chance < 0.24 and notes.offsets:
            self.stop()
            self._notes = notes.before(random.randrange(len(notes.offsets)) + 1)
            if len(self._notes.offsets) == len(notes.offsets):
                self._notes.done.discard(max(self._notes.offsets))
            self._restored = True

    def _start(self, *, available_now: bool) -> Process:
        process = self.world.process(f"{self.group}-driver")
        driver = self._driver(available_now=available_now)
        if any(one.alive for one in self._running):
            self._replaced = self.world.groups[self.group].is_crowded = True
        self._running.append(process)
        process.spawn(self._ended(process, driver))
        return process

    async def _ended(self, process: Process, driver: Driver) -> None:
        await self._run(driver)
        process.kill()

    def _driver(self, *, available_now: bool) -> Driver:
        random = self.world.random
        options: dict[str, Any] = {}
        if random.random() < 0.6:
            options["max_offsets_per_trigger"] = random.randint(1, 8)
        if random.random() < 0.2:
            options["max_bytes_per_trigger"] = random.randint(1, 3000)
        if random.random() < 0.3:
            options["min_partitions"] = random.randint(1, 4)
        if self._by_pattern:
            options["subscribe_pattern"] = PATTERN
        else:
            options["subscribe"] = ("s0",)
        made = ReadOptions(
            url="memory://simulated",
            group_id=self.group,
            starting_offsets=self._starting,
            fail_on_data_loss=not self._is_lenient,
            on_bad_batch="deadLetter" if self._gives_up else "fail",
            **options,
        )
        return Driver(self.world, made, self._notes, is_41=self.is_41, available_now=available_now)

    async def _run(self, driver: Driver) -> BaseException | None:
        was_calm = self.world.network.calm
        try:
            await driver.run()
        except Overtaken as error:
            return error
        except (Unavailable, OutcomeUnknown) as error:
            self.world.check(not was_calm, f"nothing was wrong, and yet {error!r}")
            return error
        except HeadwaterError as error:
            self.world.simulation.record("ended", group=self.group, error=repr(error)[:200])
            await self._cure(driver, error)
            return error
        return None

    async def _cure(self, driver: Driver, error: HeadwaterError) -> None:
        """Do what the error says, if there was a reason for it."""
        is_current = driver.notes is self._notes
        text = str(error)
        if isinstance(error, Trimmed):
            await self._check_lost(text)
            self._is_lenient = True
        elif isinstance(error, UnreadableBatch):
            self.world.check(any(self.world.damaged.values()), f"nothing is damaged: {error!r}")
            self._gives_up = True
        elif isinstance(error, NotFound):
            self._check_reason(self.world.deleted > 0, error)
        elif "another run of this query" in text or "Start it again" in text:
            self._check_reason(self._replaced, error)
        elif isinstance(error, Fenced) and "Start this query again" in text:
            # What happened could not be looked up.
            is_fenced = self._replaced or self.world.resets > 0
            self._check_reason(is_fenced and not self.world.network.calm, error)
        elif "was reset" in text or "headwater group delete" in text:
            self._check_reason(self.world.resets > 0, error)
            if is_current:
                self._notes, self._replaced = Notes(), True
        elif isinstance(error, Refused | Fenced) and "new checkpoint" in text:
            if "created again" in text or NOT_READ in text:
                self._check_reason(self.world.deleted > 0, error)
            else:
                # Spark 4.1 asks from where the group stands, and its checkpoint is ahead of that.
                # Where all between the two is gone, no end lies after the checkpoint.
                is_behind = self.is_41 and self._is_lenient and "would begin at" in text
                self._check_reason(self._replaced or self._restored or is_behind, error)
            if is_current:
                self._notes, self._replaced = Notes(), True
        elif isinstance(error, Damaged):
            # A queue that is gone: whether its stream was deleted could not be looked up.
            self._check_reason(self.world.deleted > 0 and not self.world.network.calm, error)
        elif "different columns" in text:
            self._check_reason(self.world.typed and not self.world.network.calm, error)
        else:
            self._check_reason(False, error)

    def _check_reason(self, is_one: bool, error: HeadwaterError) -> None:
        self.world.check(is_one, f"group {self.group} was told, without a reason: {error!r}")

    async def _check_lost(self, text: str) -> None:
        found = WANTED.search(text)
        self.world.check(found is not None, f"no place is named: {text}")
        assert found is not None
        live = {(held.stream, held.partition): held for held in self.world.live()}
        held = live.get((found[1], int(found[2])))
        if held is None:
            return
        floor = await self.world.floor(held)
        required = self.world.streams[held.stream].config.required_group
        self.world.check(required != self.group, f"{self.group} is required, and yet {text}")
        self.world.check(
            floor > int(found[3]) or self.world.deleted > 0,
            f"{text}: and yet the oldest one is {floor}",
        )
        # What another run of the group has processed is not lost: that run fenced this one.
        group = await self._stored(held)
        is_alone = not self._replaced and not self._restored and not self.world.resets
        self.world.check(
            group is None
            or group.positions[held.partition] <= int(found[3])
            or self.world.deleted > 0
            or not is_alone,
            f"{self.group} has processed what {text} says",
        )
