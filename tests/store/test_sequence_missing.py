"""Reading what is not there: below the floor, in a hole, or damaged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwater.core.errors import Corrupt, NotFound, RolledBack, Trimmed
from tests.store.scripted import after, virtual
from tests.store.sequences import appends, given, key, pass_by, payloads


@virtual
async def test_a_reader_below_the_floor_is_told_the_floor() -> None:
    _, mine, theirs = await given(entries=5)
    await theirs.raise_floor(3)
    with pytest.raises(Trimmed) as raised:
        await mine.read(2)
    assert raised.value.floor == 3
    assert await payloads(mine, 3) == [b"3", b"4"]


@virtual
async def test_a_floor_raised_while_reading_counts() -> None:
    backend, mine, theirs = await given(entries=5)
    backend.next("get", after(lambda: pass_by(theirs, count=1, floor=3)))
    with pytest.raises(Trimmed):
        await mine.read(0)


@virtual
async def test_a_missing_entry_before_a_present_one_is_damage() -> None:
    backend, mine, _ = await given(entries=5)
    await backend.inner.delete(key(2))
    with pytest.raises(RolledBack, match="entry 2 is missing"):
        await mine.read(0)


@virtual
async def test_an_entry_written_while_reading_is_no_hole() -> None:
    backend, mine, theirs = await given(entries=2)

    async def absent_before_two_more(_: object) -> None:
        await appends(theirs, 2)()
        raise NotFound(key(2))

    async def plainly(apply: Callable[[], Awaitable[object]]) -> object:
        return await apply()

    # Entry 2 is asked for before it is written, entry 3 after it was.
    backend.next("get", plainly, plainly, absent_before_two_more)
    order = [entry.number for entry in await mine.read(0)]
    assert order in ([0, 1], [0, 1, 2, 3])


@pytest.mark.parametrize("flaw", ["short", "magic", "flip", "renamed"])
@virtual
async def test_a_damaged_entry_is_reported(flaw: str) -> None:
    backend, mine, _ = await given(entries=3)
    data = bytearray((await backend.inner.get(key(1))).data)
    match flaw:
        case "short":
            data = data[:20]
        case "magic":
            data[:4] = b"XXXX"
        case "flip":
            data[-1] ^= 1
        case _:
            data = bytearray((await backend.inner.get(key(0))).data)
    await backend.inner.put(key(1), data)
    with pytest.raises(Corrupt, match=key(1)):
        await mine.read(0)
    if flaw in ("short", "magic"):
        with pytest.raises(Corrupt, match=key(1)):
            await mine.raise_floor(2)


@virtual
async def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    backend, mine, _ = await given(entries=1)
    data = (await backend.inner.get(key(0))).data
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 4
        await backend.inner.put(key(0), flipped)
        with pytest.raises(Corrupt):
            await mine.read(0)
