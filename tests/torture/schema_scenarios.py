"""Histories of what a stream carries: producers that disagree, and somebody who alters it.

Producers bring opaque values, or rows whose columns have other types from call to call; columns and
fields come and go; a type that was inferred is replaced while they append. Requests are lost, come
late and come again; processes are killed and stand still.

- what was accepted is read, once, and each value is the one that was given;
- what was refused is not there;
- the stream can be read, whatever was produced and altered at whatever time;
- once nothing is wrong any more, everybody who fits goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from headwater.buffer.consumer import read
from headwater.buffer.producer import Handle, Producer
from headwater.buffer.stream import alter_stream, create_stream, open_stream
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, NotSupported, Refused, Unavailable
from headwater.store import MemoryBackend, Store
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.surroundings import DAY_S, Failed, Replacement, Surroundings, replaced

STREAM = "s"
CALLS = 8
LIVES = 3
STEPS_MAX = 1_000_000
VALUES: tuple[Any, ...] = (1, 7, 2**40, 2.0, 2.5, "007", True, None)
SELDOM_WIDE: tuple[Any, ...] = (1, 7, None) * 6 + (2**40,)
SELDOM_BROKEN: tuple[Any, ...] = (2.0, 3.0, None) * 6 + (2.5,)
"""Mostly such that another type holds them as well."""
STRUCTS: tuple[Any, ...] = ({"a": 1}, {"a": 2, "b": "x"}, {"c": 2.5}, None)
TYPES = ("int8", "int8", "int64", "float64", "string", "decimal(20, 1)")


def schema_history(seed: int, *bug: Replacement) -> str:
    """One history; returns its fingerprint."""

    worlds: list[SchemaWorld] = []

    async def main(simulation: Simulation) -> None:
        worlds.append(SchemaWorld(simulation))
        await worlds[0].history()

    with replaced(*bug):
        try:
            return simulate(main, seed=seed, replay=SCHEMAS.replay, max_steps=STEPS_MAX).fingerprint
        finally:
            for front in worlds[0].fronts if worlds else ():
                # It ended with its process, and nobody is left to be warned of that.
                front._sender.is_closed = True


class SchemaWorld(Surroundings):
    """A stream, those who produce to it, and what they were told."""

    def __init__(self, simulation: Simulation) -> None:
        self.objects = MemoryBackend(versions_by_content=True)
        super().__init__(simulation, self.objects)
        self.partitions = self.random.randint(1, 2)
        self.opaque = self.random.choice((0.0, 0.0, 0.1))
        """How many of the calls bring opaque values."""
        mixed = self.random.sample(VALUES, self.random.randint(2, len(VALUES)))
        self.values = self.random.choice((mixed, SELDOM_WIDE, SELDOM_BROKEN))
        self.races = self.random.random() < 0.5
        """Whether values that do not fit come just when a type is replaced."""
        self.altering = asyncio.Event()
        self.given: dict[str, dict[str, Any]] = {}
        self.accepted: set[str] = set()
        self.refused: set[str] = set()
        self.fronts: list[Producer] = []

    async def history(self) -> None:
        """Everybody works, then nothing is wrong any more, and all of it is read."""
        await create_stream(Store(self.objects), STREAM, partitions=self.partitions, linger_ms=10)
        actors: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "alters": self.alter,
            "reads": self.read_on,
        }
        actors |= {name: functools.partial(self.produce, name) for name in ("p0", "p1", "p2")}
        running = [
            self.simulation.spawn(self.run(name, work, lives=LIVES), name=name)
            for name, work in actors.items()
        ]
        for task in running:
            await task
        self.network.calm = True
        await runtime.sleep(30 * DAY_S)
        await self.produce("last")
        await self.check_all()

    async def produce(self, name: str) -> None:
        """One life of a producer."""
        handles: list[tuple[str, Handle]] = []
        try:
            producer = await Producer(self.store(), STREAM).open()
        except HeadwaterError:
            return
        self.fronts.append(producer)
        for place in range(CALLS):
            await self.wait(place)
            number = f"{name}/{len(self.given)}"
            try:
                handles.append((number, await self.call(producer, number)))
            except (Refused, NotSupported):
                self.refused.add(number)
            except (Failed, Fenced):
                continue
        for number, handle in handles:
            try:
                await handle
                self.accepted.add(number)
            except Refused:
                # Its type was replaced while it was on its way.
                self.refused.add(number)
            except HeadwaterError as error:
                told = f"{number} was not accepted, and nothing was wrong: {error}"
                self.check(name != "last" and not self.gentle, told)
        try:
            await producer.close()
        except HeadwaterError:
            return

    async def wait(self, place: int) -> None:
        """Before a call: some time, or for the moment in which a type is replaced."""
        if not self.races or place < CALLS // 2:
            await runtime.sleep(self.random.choice((0.0, self.random.random() * 5)))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                await self.altering.wait()
        for _ in range(self.random.randint(0, 40)):
            await runtime.sleep(0)
        await runtime.sleep(self.random.choice((0.0, 0.0, self.random.random() * 0.3)))

    def value(self) -> Any:
        """What a record has in x."""
        if not self.races:
            return self.random.choice(self.values)
        is_wide = self.altering.is_set() and self.random.random() < 0.5
        return 2**40 if is_wide else self.random.choice((1, 7, None))

    async def call(self, producer: Producer, number: str) -> Handle:
        """Produce one record."""
        if self.random.random() < self.opaque:
            self.given[number] = {}
            return await self.tried(lambda: producer.produce([number.encode()]))
        row: dict[str, Any] = {"id": number, "x": self.value()}
        if self.random.random() < 0.3:
            row["s"] = self.random.choice(STRUCTS)
        if self.random.random() < 0.2:
            row[f"c{self.random.randint(0, 2)}"] = self.random.choice(self.values)
        self.given[number] = row
        return await self.tried(lambda: producer.produce_rows([row]))

    async def alter(self) -> None:
        """Somebody declares what x is to be, and all that is there beside it."""
        for _ in range(3):
            await runtime.sleep(self.random.random() * 20)
            store = self.store()
            try:
                known = (await open_stream(store, STREAM)).config
                if not known.schemas:
                    continue
                columns = {column.name: column.type for column in known.schemas[-1].columns}
                name = self.random.choice(("x", *columns))
                columns[name] = "int8" if self.races else self.random.choice(TYPES)
                self.altering.set()
                async with self.patience():
                    await alter_stream(store, STREAM, schema=columns)
            except (HeadwaterError, TimeoutError):
                continue

    async def read_on(self) -> None:
        """A reader that is opened anew each time finds a stream that it can read."""
        for _ in range(3):
            await runtime.sleep(self.random.random() * 20)
            before = (await open_stream(Store(self.objects), STREAM)).config
            try:
                await self.read(self.store())
            except Unavailable:
                continue
            except Refused as error:
                after = (await open_stream(Store(self.objects), STREAM)).config
                # One that was opened before a type was replaced is told to open again.
                self.check(after != before, f"it cannot be read: {error}")
            except HeadwaterError:
                continue

    async def read(self, store: Store) -> dict[str, dict[str, Any]]:
        """Every record by its number."""
        found: dict[str, dict[str, Any]] = {}
        reader = await read(store, STREAM).open()
        async for batch in reader:
            for row in batch.to_pylist():
                number = row["id"] if "id" in row else row["_value"].decode()
                self.check(number not in found, f"{number} is there twice")
                found[number] = row
        return found

    async def check_all(self) -> None:
        """All that was accepted is there, and as it was given."""
        found = await self.read(Store(self.objects))
        missing = self.accepted - found.keys()
        self.check(not missing, f"{sorted(missing)} were accepted, and are not there")
        there = self.refused & found.keys()
        self.check(not there, f"{sorted(there)} were refused, and are there")
        for number, row in found.items():
            for name, value in self.given[number].items():
                got = row.get(name)
                self.check(_is_same(value, got), f"{number}: {name} is {got!r}, not {value!r}")
        last = [number for number in found if number.startswith("last/")]
        refused = [number for number in self.refused if number.startswith("last/")]
        self.check(len(last) + len(refused) == CALLS, "a call was neither accepted nor refused")


def _is_same(given: Any, found: Any) -> bool:
    """Whether a value is the one that was given; a struct may have gained fields."""
    if isinstance(given, dict):
        return isinstance(found, dict) and all(
            _is_same(given.get(name), value) for name, value in found.items()
        )
    if given is None or isinstance(given, str | bool):
        return type(given) is type(found) and given == found
    is_text = isinstance(found, str | bool | None)
    return not is_text and bool(given == found)


SCHEMAS = Scenario("buffer", "schemas", schema_history, rounds=2000, sample=20)
SCENARIOS = [SCHEMAS]
