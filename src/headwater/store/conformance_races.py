"""The races: faults of a store that a single client never sees.

Every contender's bytes carry a token of its own, so that an answer that was lost on the way
is settled by looking, and a store is not blamed for a bad network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from headwater.core import limits
from headwater.core.errors import AlreadyExists, Conflict, Contended
from headwater.core.lease import Lease
from headwater.core.retry import RetryPolicy
from headwater.store.conformance_checks import CheckFolder, Violation, check, expect, nonce, run_all
from headwater.store.numbered_log import LeasedFloor, LogFloor, NumberedLog
from headwater.store.objects import Object, Version
from headwater.store.register import Register
from headwater.store.store import Store

# A contender that loses this often in a row is being refused, not beaten.
ATTEMPTS_PER_INCREMENT: Final = 2000
# A register or a log gives up after many lost races of its own; then it is tried again.
ATTEMPTS_WHEN_CONTENDED: Final = 5
# Short waits: a race in which the contenders avoid each other shows nothing.
EAGER: Final = RetryPolicy(base_s=0.002, cap_s=0.05)
TOKEN_BYTES: Final = 16
READ_AT_ONCE: Final = 64
MUST_NOT_BE_USED: Final = "Headwater would lose records without noticing; do not use this store"

Counts = dict[str, int]


class _Tally(msgspec.Struct, frozen=True):
    """The object of a race. Each writer raises only its own count, so a writer that finds its count
    raised knows that its change landed, even if the answer was lost."""

    nonce: str
    counts: list[int]


@check(
    "Of writers that replace the same version only one succeeds, because every other one "
    "would erase an accepted change.",
    is_race=True,
)
async def race_replace(target: CheckFolder) -> str:
    writers, increments = target.sizes.writers, target.sizes.increments
    key, total = target.key("tally"), writers * increments
    data, token = _encode([0] * writers)
    first = await target.store.put_if_absent(key, data, token=token)
    accepted = 0

    async def write(me: int) -> None:
        nonlocal accepted
        counts, version = [0] * writers, first
        for _ in range(increments):
            counts, version = await _increment(target, key, me, counts, version)
            accepted += 1
            target.advance(accepted, total)

    await run_all(write(me) for me in range(writers))
    counted = sum(_decode(await target.store.get(key)).counts)
    expect(
        counted >= accepted,
        f"{accepted - counted} of {accepted} accepted updates were lost without an error ("
        f"{writers} writers, put-if-unchanged on one object). {MUST_NOT_BE_USED}",
    )
    expect(counted <= accepted, f"{counted - accepted} updates more than the {accepted} accepted")
    return f"{writers} writers × {increments} updates: {counted:,} of {total:,}"


async def _increment(
    target: CheckFolder, key: str, me: int, counts: list[int], version: Version
) -> tuple[list[int], Version]:
    for _ in range(ATTEMPTS_PER_INCREMENT):
        raised = [count + (writer == me) for writer, count in enumerate(counts)]
        data, token = _encode(raised)
        try:
            return raised, await target.store.put_if_unchanged(key, data, version, token=token)
        except Conflict as conflict:
            expect(conflict.current is not None, "the object vanished while it was updated")
            counts, version = _decode(conflict.current).counts, conflict.current.version
            if counts[me] == raised[me]:
                return counts, version  # landed, its answer was lost, and others went on from it
    raise Violation(f"a writer was refused {ATTEMPTS_PER_INCREMENT} times in a row")


def _encode(counts: list[int]) -> tuple[bytes, bytes]:
    token = nonce()
    return msgspec.json.encode(_Tally(token.decode(), counts)), token


def _decode(stored: Object) -> _Tally:
    try:
        return msgspec.json.decode(stored.data, type=_Tally)
    except msgspec.DecodeError as error:
        raise Violation(f"{stored.meta.key} holds bytes that no writer wrote: {error}") from error


@check(
    "Of writers that create the same key exactly one succeeds, because a second one would "
    "erase an accepted record.",
    is_race=True,
)
async def race_create(target: CheckFolder) -> str:
    racers, keys = target.sizes.racers, target.sizes.keys
    wrong: list[str] = []
    for number in range(keys):
        key = target.key(f"prize-{number:04d}")
        outcomes = await run_all(_create(target, key) for _ in range(racers))
        winners = [data for won, data in outcomes if won]
        if len(winners) != 1:
            wrong.append(f"{len(winners)} winners")
        elif {data for _, data in outcomes} != set(winners):
            wrong.append("losers were shown another content than the winner's")
        elif (await target.store.get(key)).data != winners[0]:
            wrong.append("the winner's content is not what is there")
        target.advance(number + 1, keys)
    expect(
        not wrong,
        f"{len(wrong)} of {keys} keys, each created by {racers} at once, did not have one winner "
        f"(first: {wrong[0] if wrong else ''}). {MUST_NOT_BE_USED}",
    )
    return f"{racers} contenders on {keys} keys: one winner each"


async def _create(target: CheckFolder, key: str) -> tuple[bool, bytes]:
    """Whether this writer won, and the content that it was shown."""
    token = nonce()
    data = b"prize of %b\n" % token
    try:
        await target.store.put_if_absent(key, data, token=token)
    except AlreadyExists as lost:
        return False, bytes(lost.current.data)
    return True, data


@check(
    "A register changed by many at once loses no change, because logs keep their heads in one.",
    is_race=True,
)
async def race_register(target: CheckFolder) -> str:
    writers, changes = target.sizes.writers, target.sizes.shared_changes
    key, total = target.key("register"), writers * changes
    numbers: list[int] = []

    async def write(me: str) -> None:
        register = Register(target.store, key, Counts, policy=EAGER)

        def change(now: Counts | None) -> Counts:
            before = now or {}
            return {**before, me: before.get(me, 0) + 1}

        for _ in range(changes):
            numbers.append(await _update(register, change))
            target.advance(len(numbers), total)

    names = [f"writer-{me}" for me in range(writers)]
    await run_all(write(name) for name in names)
    counts = (await Register(target.store, key, Counts).read()).value
    lost = {name: changes - counts.get(name, 0) for name in names if counts.get(name) != changes}
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


class _RaceLog(NumberedLog):
    """A log whose floor never rises. Its entries are a token and a payload."""

    def __init__(self, store: Store, folder: str) -> None:
        super().__init__(store, folder, LeasedFloor(limits.FLOOR_LEASE_S), policy=EAGER)

    async def read_floor(self) -> LogFloor:
        self.leased_floor.learn(LogFloor(0, 0), Lease())
        return self.leased_floor.floor


@check(
    "A numbered log appended to by many at once is dense and has each entry once, because the "
    "queues and the tier's events are such logs.",
    is_race=True,
)
async def race_numbered_log(target: CheckFolder) -> str:
    writers, changes = target.sizes.writers, target.sizes.shared_changes
    folder, total = f"{target.folder}/log", writers * changes
    target.keys |= {f"{folder}/{number:020d}" for number in range(total)}
    accepted: dict[int, bytes] = {}

    async def write(me: int) -> None:
        log = _RaceLog(target.store, folder)
        for count in range(changes):
            payload = b"entry %d of writer %d" % (count, me)
            accepted[await _append(log, payload)] = payload
            target.advance(len(accepted), total)

    await run_all(write(me) for me in range(writers))
    log = _RaceLog(target.store, folder)
    stored: list[bytes] = []
    while entries := await log.read(len(stored), READ_AT_ONCE):
        stored += [bytes(entry.data[TOKEN_BYTES:]) for entry in entries]
    missing = [n for n, payload in sorted(accepted.items()) if stored[n : n + 1] != [payload]]
    expect(
        len(accepted) == len(stored) == total and not missing,
        f"{len(stored)} entries are there and {total} were accepted; not there as accepted: "
        f"{missing[:5]}. {MUST_NOT_BE_USED}",
    )
    return f"{writers} clients × {changes} appends: {total} entries, dense, each once"


async def _append(log: NumberedLog, payload: bytes) -> int:
    for _ in range(ATTEMPTS_WHEN_CONTENDED):
        try:
            return await log.append(lambda _, token: token + payload)
        except Contended:
            continue
    raise Violation(f"an append was refused {ATTEMPTS_WHEN_CONTENDED} times")
