"""Who only reads in a history of a stream: groups that follow, and readers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pyarrow as pa

from headwater.buffer.collection import GarbageCollection
from headwater.buffer.consumer import Follower, Lag, Reader, UnreadableBatch, read
from headwater.buffer.group import GroupRegister
from headwater.buffer.truncation import TruncationPlan, plan_truncation, truncate_partition
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused, Trimmed
from tests.torture.stack_world import REQUIRED, Sink, StackWorld
from tests.torture.surroundings import Failed

STEPS_MAX = 15


class FollowerActor:
    """A group that follows, with results of its own."""

    def __init__(self, world: StackWorld, group: str) -> None:
        self.world = world
        self.group = group
        self.sink = Sink(world)
        self.reset = False
        """Whether the retention took what it would have read next."""

    async def work(self) -> None:
        """One life."""
        world, idle_s = self.world, 0.1
        try:
            follower = await self._open()
        except Failed:
            return
        for _ in range(STEPS_MAX):
            if world.over:
                break
            found = False
            try:
                found = await self.step(follower)
            except Failed:
                pass
            except Trimmed:
                self.reset = True
                break
            except (Refused, UnreadableBatch):
                break  # checked where it was told
            idle_s = 0.1 if found else min(world.idles_s, idle_s * 2)
            await runtime.sleep(world.random.uniform(0, idle_s))
        await follower.close()

    async def _open(self) -> Follower:
        world, reset = self.world, self.reset
        follower = await world.tried(
            lambda: Follower.open(
                world.stream(),
                group=self.group,
                reset=reset,
                on_bad_batch="dead_letter" if world.damages else "raise",
                read_ahead_batches=world.random.choice((1, 2, 32)),
            )
        )
        position = -1 if follower.position is None else follower.position
        right = position <= self.sink.last or position + 1 <= world.truth.floor_sequence
        world.check(right, f"{self.group} goes on after {position}, and stands at {self.sink.last}")
        self.sink.go_to(position)
        self.reset = False
        return follower

    async def step(self, follower: Follower) -> bool:
        """Take one batch and commit it, perhaps; says whether there was one."""
        world = self.world
        before = -1 if follower.position is None else follower.position
        try:
            batch = await world.tried(follower.next_batch)
        except Trimmed:
            floor = world.truth.floor_sequence
            world.check(before + 1 < floor, f"{before + 1} is not trimmed: {floor} is the floor")
            raise
        if batch is None:
            return False
        world.check(batch.sequence == before + 1, f"{batch.sequence} comes after {before}")
        world.log.check_delivered(batch)
        self.sink.take(batch.sequence)
        if world.random.random() < 0.7:
            await self._commit(follower, batch.sequence)
        return True

    async def _commit(self, follower: Follower, sequence: int) -> None:
        try:
            await self.world.tried(lambda: follower.commit(sequence))
        except Refused as refused:
            # Another life of the group has come further.
            self.world.check("non-monotonic" in str(refused), f"refused: {refused}")
            raise

    async def drain(self) -> None:
        """Read to the end, with nothing in the way."""
        follower, is_over = await self._open(), False
        while not is_over:
            try:
                is_over = not await self.step(follower)
            except Trimmed:
                await follower.close()
                self.reset = True
                follower = await self._open()
        last = len(self.world.log.batches) - 1
        self.world.check(self.sink.last == last, f"{self.group} saw {self.sink.last} of {last}")
        if follower.position is not None and follower.committed != follower.position:
            await follower.commit(follower.position)
        lag = await follower.lag()
        self.world.check(lag == Lag(), f"{self.group} has read everything, and lags {lag}")
        await follower.close()


class TruncatorActor:
    """Gives up the records before an offset, of which some are acknowledged and some are not."""

    def __init__(self, world: StackWorld) -> None:
        self.world = world

    async def work(self) -> None:
        """One life."""
        world, random = self.world, self.world.random
        for _ in range(STEPS_MAX):
            if world.over:
                return
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 30, 1000)))
            before = random.choice(("latest", random.randint(1, world.log.next_lsn)))
            with contextlib.suppress(Failed):
                await self.truncate(before)

    async def truncate(self, before: int | str) -> None:
        """Truncate, and compare with the log what was planned and what came of it."""
        world, native = self.world, self.world.native
        assert native is not None
        (plan,) = await world.tried(lambda: plan_truncation(world.stream(), before))
        self._check_plan(plan, before)
        if not plan.is_done:
            native.truncates_before = max(native.truncates_before, plan.sequence)
        floor_lsn = world.floor_lsn()
        done = await world.tried(lambda: truncate_partition(world.stream(), plan, force=True))
        world.check(done.start_lsn >= max(plan.start_lsn, floor_lsn), f"{done} of {plan}")
        world.check(world.floor_lsn() >= done.start_lsn, f"{done}, and {world.floor_lsn()} is kept")

    def _check_plan(self, plan: TruncationPlan, before: int | str) -> None:
        """Nothing at or after the offset goes, and no whole batch before it stays."""
        world, log = self.world, self.world.log
        if isinstance(before, int):
            world.check(plan.before_lsn == before, f"{plan} was asked for {before}")
        world.check(plan.start_lsn <= max(plan.before_lsn, plan.floor_lsn), f"{plan} goes too far")
        if plan.sequence < len(log.batches):
            real = log.batches[plan.sequence]
            world.check(real.first_lsn == plan.start_lsn, f"{plan}: {real} begins elsewhere")
            near = plan.before_lsn < max(real.next_lsn, real.first_lsn + 1)
            world.check(plan.is_done or near, f"{plan} does not go far enough: {real}")


class ReaderActor:
    """Reads ranges, opens nothing."""

    def __init__(self, world: StackWorld) -> None:
        self.world = world

    async def work(self) -> None:
        """One life."""
        world, random = self.world, self.world.random
        for _ in range(STEPS_MAX):
            if world.over:
                return
            end_lsn = world.log.next_lsn
            first = random.choice((None, "earliest", random.randint(1, end_lsn)))
            end = random.choice((None, "latest", random.randint(1, end_lsn + 5)))
            try:
                await self.read(first, end)
            except Failed:
                pass
            except Trimmed:
                world.check(world.truth.floor_sequence > 0, "nothing is trimmed")
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 100, 3000)))

    async def read(self, start: int | str | None, end: int | str | None) -> None:
        """Read a range to its end, and compare it with the log."""
        world, log = self.world, self.world.log
        floor_lsn, until_lsn = world.floor_lsn(), log.next_lsn
        reader = await world.tried(
            lambda: read(
                world.stream(),
                start=start,
                end=end,
                columns=["_lsn", "_value", "_metadata"],
                on_bad_batch="skip" if world.damages else "raise",
                read_ahead_bytes=world.random.choice((0, 200, 1 << 20)),
            ).open()
        )
        lsn = start if isinstance(start, int) else floor_lsn
        exact = isinstance(start, int)
        async with reader:
            while (rows := await self._next(reader)) is not None:
                lsns = rows.column("_lsn").to_pylist()
                self._check_follows(lsn, lsns[0], exact=exact)
                first, lsn, exact = lsns[0], lsns[-1] + 1, True
                world.check(lsns == list(range(first, lsn)), "LSNs have a gap")
                real: Sequence[bytes] = log.values[first - 1 : lsn - 1]
                world.check(rows.column("_value").to_pylist() == real, f"{first}: other values")
                payloads = rows.column("_metadata").to_pylist()
                world.check(payloads == log.payloads(real), f"{first}: other metadata")
            for lost in reader.lost:
                log.check_lost(lost)
        until_lsn = min(end, until_lsn) if isinstance(end, int) else until_lsn
        self._check_follows(min(lsn, until_lsn), until_lsn, exact=exact)

    async def _next(self, reader: Reader) -> pa.RecordBatch | None:
        """The next rows; a call that was cancelled or failed is made again."""
        while True:
            try:
                return await self.world.tried(reader.next_batch)
            except Failed:
                await runtime.sleep(self.world.random.expovariate(1.0))

    def _check_follows(self, lsn: int, following: int, *, exact: bool) -> None:
        """Nothing is left out but what was lost, and, at the start, what was trimmed."""
        log = self.world.log
        begins = max(lsn, 1 if exact else self.world.floor_lsn())
        lost = {
            at
            for sequence in log.damaged
            for at in range(log.batches[sequence].first_lsn, log.batches[sequence].next_lsn)
        }
        left_out = [at for at in range(begins, following) if at not in lost]
        self.world.check(not left_out, f"{left_out} were left out")


class RequiredActor:
    """The required group: processes what the owner has acknowledged."""

    def __init__(self, world: StackWorld) -> None:
        self.world = world

    async def work(self) -> None:
        """One life."""
        random = self.world.random
        for _ in range(STEPS_MAX):
            if self.world.over:
                return
            with contextlib.suppress(Failed, Fenced):
                await self.world.tried(self.follow)
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 30, 1000)))

    async def follow(self) -> None:
        """Go on to where the owner is."""
        stream = self.world.stream()
        register = GroupRegister(stream, REQUIRED)
        await register.begin("query", {0: 1})
        epoch = await register.start_query("one", is_new=True)
        await register.take(0, epoch)
        await register.acknowledge(0, epoch, (await stream.queue_reader(0).state()).acked_lsn)


class CollectingActor:
    """Collects as the stream's settings, its required group and its transactions say."""

    def __init__(self, world: StackWorld) -> None:
        self.world = world

    async def work(self) -> None:
        """One life."""
        world, collection = self.world, GarbageCollection(self.world.stream(), 0)
        for _ in range(STEPS_MAX):
            if world.over:
                return
            full = world.random.random() < 0.3
            with contextlib.suppress(Failed):
                await world.tried(lambda: collection.run_pass(full=full))  # noqa: B023
            wait_s = world.random.choice(world.collects_every_s)
            await runtime.sleep(world.random.expovariate(1.0) * wait_s)
