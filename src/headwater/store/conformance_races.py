"""The races: what no store shows while one client asks politely.

Every contender's bytes carry a token of its own, so that an answer that was lost on the way
is settled by looking, and a store is not blamed for a bad network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from headwater.core.errors import AlreadyExists, Conflict, Contended
from headwater.core.retry import RetryPolicy
from headwater.store.conformance_checks import CheckFolder, Violation, expect, nonce, run_all
from headwater.store.objects import Object, Version
from headwater.store.register import Register
from headwater.store.sequence import Entry, Sequence

# A contender that loses this often in a row is being refused, not beaten.
ATTEMPTS_PER_INCREMENT: Final = 2000
# A register or a sequence gives up after many lost races of its own; then it is asked again.
ATTEMPTS_WHEN_CONTENDED: Final = 5
# Short waits: a race in which the contenders avoid each other shows nothing.
EAGER: Final = RetryPolicy(base_s=0.002, cap_s=0.05)
MUST_NOT_BE_USED: Final = "Headwater would lose records without noticing; do not use this store"

Counts = dict[str, int]


class _Tally(msgspec.Struct, frozen=True):
    """What is raced for. Each writer raises only its own count, so a writer that finds its count
    raised knows that its change landed, whatever happened to the answer."""

    nonce: str
    counts: list[int]


async def race_replace(bench: CheckFolder) -> str:
    """Writers raise counts in one object by put-if-unchanged; every raise must remain."""
    writers, increments = bench.sizes.writers, bench.sizes.increments
    key, total = bench.key("tally"), writers * increments
    data, token = _encode([0] * writers)
    first = await bench.store.put_if_absent(key, data, token=token)
    accepted = 0

    async def write(me: int) -> None:
        nonlocal accepted
        counts, version = [0] * writers, first
        for _ in range(increments):
            counts, version = await _increment(bench, key, me, counts, version)
            accepted += 1
            bench.advance(accepted, total)

    await run_all(write(me) for me in range(writers))
    found = sum(_decode(await bench.store.get(key)).counts)
    expect(
        found >= accepted,
        f"{accepted - found} of {accepted} accepted updates were lost without an error ({writers} "
        f"writers, put-if-unchanged on one object). {MUST_NOT_BE_USED}",
    )
    expect(found <= accepted, f"{found - accepted} updates more than the {accepted} accepted")
    return f"{writers} writers × {increments} updates: {found:,} of {total:,}"


async def _increment(
    bench: CheckFolder, key: str, me: int, counts: list[int], version: Version
) -> tuple[list[int], Version]:
    for _ in range(ATTEMPTS_PER_INCREMENT):
        raised = [count + (writer == me) for writer, count in enumerate(counts)]
        data, token = _encode(raised)
        try:
            return raised, await bench.store.put_if_unchanged(key, data, version, token=token)
        except Conflict as conflict:
            expect(conflict.current is not None, "the object vanished while it was updated")
            counts, version = _decode(conflict.current).counts, conflict.current.version
            if counts[me] == raised[me]:
                return counts, version  # landed, its answer was lost, and others went on from it
    raise Violation(f"a writer was refused {ATTEMPTS_PER_INCREMENT} times in a row")


def _encode(counts: list[int]) -> tuple[bytes, bytes]:
    token = nonce()
    return msgspec.json.encode(_Tally(token.decode(), counts)), token


def _decode(found: Object) -> _Tally:
    try:
        return msgspec.json.decode(found.data, type=_Tally)
    except msgspec.DecodeError as error:
        raise Violation(f"{found.meta.key} holds what nobody wrote: {error}") from error


async def race_create(bench: CheckFolder) -> str:
    """Many create one key at once; one must win, and all must see what it wrote."""
    racers, keys = bench.sizes.racers, bench.sizes.keys
    wrong: list[str] = []
    for number in range(keys):
        key = bench.key(f"prize-{number:04d}")
        outcomes = await run_all(_create(bench, key) for _ in range(racers))
        winners = [data for won, data in outcomes if won]
        if len(winners) != 1:
            wrong.append(f"{len(winners)} winners")
        elif {data for _, data in outcomes} != set(winners):
            wrong.append("losers were shown another content than the winner's")
        elif (await bench.store.get(key)).data != winners[0]:
            wrong.append("the winner's content is not what is there")
        bench.advance(number + 1, keys)
    expect(
        not wrong,
        f"{len(wrong)} of {keys} keys, each created by {racers} at once, did not have one winner "
        f"(first: {wrong[0] if wrong else ''}). {MUST_NOT_BE_USED}",
    )
    return f"{racers} contenders on {keys} keys: one winner each"


async def _create(bench: CheckFolder, key: str) -> tuple[bool, bytes]:
    """Whether this contender won, and the content it believes to be there."""
    token = nonce()
    data = b"prize of %b\n" % token
    try:
        await bench.store.put_if_absent(key, data, token=token)
    except AlreadyExists as lost:
        return False, bytes(lost.current.data)
    return True, data


async def race_register(bench: CheckFolder) -> str:
    """Handles of one register change it at once; each change is a revision of its own."""
    writers, changes = bench.sizes.writers, bench.sizes.shared_changes
    key, total = bench.key("register"), writers * changes
    numbers: list[int] = []

    async def write(me: str) -> None:
        register = Register(bench.store, key, Counts, policy=EAGER)

        def change(now: Counts | None) -> Counts:
            before = now or {}
            return {**before, me: before.get(me, 0) + 1}

        for _ in range(changes):
            numbers.append(await _update(register, change))
            bench.advance(len(numbers), total)

    names = [f"writer-{me}" for me in range(writers)]
    await run_all(write(name) for name in names)
    found = (await Register(bench.store, key, Counts).read()).value
    lost = {name: changes - found.get(name, 0) for name in names if found.get(name) != changes}
    expect(not lost, f"changes lost per writer: {lost}. {MUST_NOT_BE_USED}")
    expect(
        sorted(numbers) == list(range(1, total + 1)),
        f"{total} changes made {len(set(numbers))} different revisions. {MUST_NOT_BE_USED}",
    )
    return f"{writers} handles × {changes} changes: {total} revisions, none lost"


async def _update(register: Register[Counts], change: Callable[[Counts | None], Counts]) -> int:
    for _ in range(ATTEMPTS_WHEN_CONTENDED):
        try:
            return (await register.update(change)).number
        except Contended:
            continue  # nothing landed; in a race as dense as this one that may happen
    raise Violation(f"a change was refused {ATTEMPTS_WHEN_CONTENDED} times")


async def race_sequence(bench: CheckFolder) -> str:
    """Handles of one sequence append at once; the entries are dense and each is there once."""
    writers, changes = bench.sizes.writers, bench.sizes.shared_changes
    prefix, total = f"{bench.folder}/sequence", writers * changes
    bench.keys |= {f"{prefix}/floor", *(f"{prefix}/{number:020d}" for number in range(total))}
    await Sequence(bench.store, prefix, policy=EAGER).create()
    accepted: list[Entry] = []

    async def write(me: int) -> None:
        sequence = Sequence(bench.store, prefix, policy=EAGER)
        for count in range(changes):
            payload = b"entry %d of writer %d" % (count, me)
            accepted.append(Entry(await _append(sequence, payload), payload))
            bench.advance(len(accepted), total)

    await run_all(write(me) for me in range(writers))
    found = await Sequence(bench.store, prefix).read(0, limit=total + 1)
    promised = sorted(accepted, key=lambda entry: entry.number)
    missing = [entry.number for entry in promised if entry not in found]
    expect(
        found == promised,
        f"{len(found)} entries are there and {total} were accepted; not there as accepted: "
        f"{missing[:5]}. {MUST_NOT_BE_USED}",
    )
    return f"{writers} handles × {changes} appends: {total} entries, dense, each once"


async def _append(sequence: Sequence, payload: bytes) -> int:
    for _ in range(ATTEMPTS_WHEN_CONTENDED):
        try:
            return await sequence.append(payload)
        except Contended:
            continue
    raise Violation(f"an append was refused {ATTEMPTS_WHEN_CONTENDED} times")
