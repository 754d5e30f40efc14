"""The checks that one client makes alone, and what all checks use: a folder each, their sizes,
and the ways to report a violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headwater.core import runtime
from headwater.core.errors import AlreadyExists, Conflict, NotFound, Unavailable
from headwater.core.limits import LIST_PAGE_KEYS, MIB, MULTIPART_ABOVE_BYTES
from headwater.store.objects import ByteRange
from headwater.store.store import Store

T = TypeVar("T")

# Concurrent requests of a check that is not a race.
CONCURRENT_REQUESTS: Final = 32
# One more than a page holds; enough to be sent in parts.
LISTED: Final = LIST_PAGE_KEYS + 1
LARGE_BYTES: Final = MULTIPART_ABOVE_BYTES + MIB


class Violation(Exception):
    """The store gave an answer that breaks what Headwater needs."""


class CheckSkipped(Exception):
    """The check has nothing to do in this run."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each check does."""

    writers: int = 8
    """Writers in a race of changes."""
    increments: int = 100
    """Changes that each of them makes to one object."""
    racers: int = 64
    """Writers that create the same key."""
    keys: int = 50
    """Keys that they race for, one after the other."""
    listed: int = LISTED
    """Objects in the long listing; above LIST_PAGE_KEYS there is more than one page."""
    large_bytes: int = LARGE_BYTES
    """The size of the object that is sent in parts."""

    @property
    def shared_changes(self) -> int:
        """Changes each writer makes through a register or a numbered log, which cost more each."""
        return max(1, self.increments // 10)


@dataclass(slots=True)
class CheckFolder:
    """The folder of one check. It remembers each key for the clean-up, because the listing of a
    wrong store may not contain them all."""

    store: Store
    folder: str
    sizes: Sizes
    advance: Callable[[int, int], None]
    """Reports progress: how much is done, and of how much."""
    keys: set[str]

    def key(self, name: str) -> str:
        key = f"{self.folder}/{name}"
        self.keys.add(key)
        return key


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    claim: str
    """What must hold, and why Headwater needs it."""
    run: Callable[[CheckFolder], Awaitable[str]]
    is_race: bool = False


def check(
    claim: str, *, is_race: bool = False
) -> Callable[[Callable[[CheckFolder], Awaitable[str]]], Check]:
    """Make a check of a function, named like it. The function returns a detail for the report."""

    def decorate(run: Callable[[CheckFolder], Awaitable[str]]) -> Check:
        name = getattr(run, "__name__").strip("_").replace("_", "-")  # noqa: B009  not every callable has one
        return Check(name, claim, run, is_race)

    return decorate


def expect(holds: bool, otherwise: str) -> None:
    """Raise `Violation(otherwise)` unless `holds`."""
    if not holds:
        raise Violation(otherwise)


def nonce() -> bytes:
    """Text that no other writer writes."""
    return runtime.new_token().hex().encode()


async def run_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all concurrently and to the end, then raise an error if there was one, violations first.

    Stopping at the first error would let the others write while the check cleans up.
    """
    done = await asyncio.gather(*work, return_exceptions=True)
    errors = [result for result in done if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: not isinstance(error, Violation)):
        raise error
    return [result for result in done if not isinstance(result, BaseException)]


async def for_each(items: Iterable[str], call: Callable[[str], Awaitable[T]]) -> list[T]:
    """Call `call` for every item, CONCURRENT_REQUESTS at a time."""
    gate = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def one(item: str) -> T:
        async with gate:
            return await call(item)

    return await run_all(one(item) for item in items)


# A store that is right only most of the time is caught by asking more than once.
ROUNDS: Final = 5


@check(
    "An object can be read as soon as it is written, because consumers read a record as soon "
    "as it is accepted."
)
async def read_your_write(target: CheckFolder) -> str:
    for number in range(ROUNDS):
        key, data = target.key(f"object-{number}"), b"written " + nonce()
        version = await target.store.put(key, data)
        stored = await target.store.get(key)
        expect(stored.data == data, "a read right after a write gave other bytes")
        expect(stored.version == version, f"written as {version}, read as {stored.version}")
    return f"{ROUNDS} objects"


@check(
    "An overwritten object shows its new content at once, because a stale read would bring "
    "back decisions that were already replaced."
)
async def overwrite(target: CheckFolder) -> str:
    key = target.key("object")
    for number in range(ROUNDS):
        data = b"content %d " % number + nonce()
        await target.store.put(key, data)
        stored = await target.store.get(key)
        expect(stored.data == data, f"after overwrite {number} a read gave an earlier content")
    return f"{ROUNDS} contents of one object"


@check("An object may be empty, because markers are.")
async def empty_object(target: CheckFolder) -> str:
    key = target.key("object")
    await target.store.put(key, b"")
    stored = await target.store.get(key)
    size_bytes = (await target.store.head(key)).size_bytes
    expect(len(stored.data) == 0 and size_bytes == 0, f"no bytes became {size_bytes}")
    return ""


@check("Size and version can be read without the bytes, because a check must stay cheap.")
async def head(target: CheckFolder) -> str:
    key, data = target.key("object"), b"described " + nonce()
    await target.store.put(key, data)
    meta, stored = await target.store.head(key), await target.store.get(key)
    expect(meta.size_bytes == len(data), f"{len(data)} bytes are said to be {meta.size_bytes}")
    expect(meta.version == stored.version, f"head says {meta.version}, get {stored.version}")
    expect(await _is_absent(target, target.key("nothing")), "an object that was not written exists")
    return ""


@check(
    "Any range of an object can be read, with its version, because readers take single "
    "records and footers out of large objects."
)
async def ranges(target: CheckFolder) -> str:
    key = target.key("object")
    data = bytes(number % 251 for number in range(1000))
    version = await target.store.put(key, data)
    wanted = {
        "the beginning": (ByteRange(0, 10), data[:10]),
        "the middle": (ByteRange(400, 600), data[400:600]),
        "the end": (ByteRange(990, 1000), data[990:]),
        "everything": (ByteRange(0, 1000), data),
        "over the end": (ByteRange(900, 5000), data[900:]),
        "past the end": (ByteRange(2000, 3000), b""),
        "nothing": (ByteRange(500, 500), b""),
        "the last 10": (ByteRange(-10), data[-10:]),
        "more than there is from the end": (ByteRange(-5000), data),
    }
    for name, (byte_range, expected) in wanted.items():
        try:
            stored = await target.store.get(key, byte_range)
        except Unavailable as error:
            await target.store.get(key)  # if this fails as well, it was not the range
            raise Violation(f"{name} cannot be read though the whole can: {error}") from error
        expect(stored.data == expected, f"{name}: {len(stored.data)} bytes, or other ones, came")
        expect(stored.version == version, f"{name} came with another version than the whole")
    return f"{len(wanted)} ranges"


@check("Creating what exists is refused, because a number in a log is taken once.")
async def create_if_absent(target: CheckFolder) -> str:
    key, first, second = target.key("object"), nonce(), nonce()
    version = await target.store.put_if_absent(key, first, token=first)
    try:
        await target.store.put_if_absent(key, second, token=second)
    except AlreadyExists as refused:
        current = refused.current
        expect(current.data == first, "the refusal does not show the content that is there")
        expect(current.version == version, "the refusal shows another version than was written")
    else:
        raise Violation("an existing object was created again: the condition is ignored")
    expect((await target.store.get(key)).data == first, "the refused content is there")
    return ""


@check(
    "Replacing succeeds for the given version and for no other, because a change based on an "
    "old version would undo another writer's."
)
async def replace_if_unchanged(target: CheckFolder) -> str:
    key, texts = target.key("object"), [nonce() for _ in range(4)]
    first = await target.store.put_if_absent(key, texts[0], token=texts[0])
    second = await target.store.put_if_unchanged(key, texts[1], first, token=texts[1])
    stored = await target.store.get(key)
    expect(stored.data == texts[1], "an accepted replacement is not there")
    expect(stored.version == second, "an accepted replacement has another version than answered")
    try:
        await target.store.put_if_unchanged(key, texts[2], first, token=texts[2])
    except Conflict as refused:
        expect(
            refused.current is not None and refused.current.data == texts[1],
            "the refusal does not show the content that is there",
        )
    else:
        raise Violation("a replacement of an outdated version was accepted: If-Match is ignored")
    gone = target.key("gone")
    try:
        await target.store.put_if_unchanged(gone, texts[3], second, token=texts[3])
    except Conflict as refused:
        expect(refused.current is None, "a refused replacement of nothing shows something")
    else:
        raise Violation("a replacement of an object that does not exist was accepted")
    expect(await _is_absent(target, gone), "a refused replacement of nothing created it")
    return ""


@check(
    "Different contents have different versions, because otherwise a change in between is not "
    "noticed."
)
async def version_changes(target: CheckFolder) -> str:
    key = target.key("object")
    versions = [await target.store.put(key, nonce()) for _ in range(ROUNDS * 2)]
    expect(
        len(set(versions)) == len(versions),
        f"{len(versions)} contents of one object had {len(set(versions))} versions",
    )
    return f"{len(versions)} contents, as many versions"


@check(
    "Whether equal bytes have equal versions is good to know: Headwater puts a nonce into "
    "every conditionally written object, so both are fine."
)
async def identical_rewrite(target: CheckFolder) -> str:
    key, data = target.key("object"), nonce()
    first = await target.store.put(key, data)
    await target.store.put(key, nonce())
    again = await target.store.put(key, data)
    if first == again:
        return "versions are content hashes; fine, as no content is repeated"
    return "every write has a version of its own"


@check(
    "A listing is ordered and complete right after a write or a delete, because recovery "
    "lists objects that no index has yet."
)
async def list_(target: CheckFolder) -> str:
    names = "0 9 A Z _ a-b a. a/b a/b-c a=c a_b ab a-z/1 a-z/10 a-z/9 z.1 z=1 zz".split()
    keys = [target.key(name) for name in names]
    await for_each(keys, lambda key: target.store.put(key, key.encode()))
    metas = [meta async for meta in target.store.list(target.folder)]
    _compare([meta.key for meta in metas], sorted(keys))
    sizes = {meta.key: meta.size_bytes for meta in metas}
    expect(all(sizes[key] == len(key) for key in keys), "a listing shows wrong sizes")
    late = target.key("zzz")
    await target.store.put(late, b"late")
    await target.store.delete(keys[0])
    _compare(await _list(target), sorted({*keys[1:], late}))
    return f"{len(keys)} keys"


@check("A listing begins strictly above a given key, because readers continue where they stopped.")
async def list_start_after(target: CheckFolder) -> str:
    keys = [target.key(f"{number:02d}") for number in range(0, 20, 2)]
    await for_each(keys, lambda key: target.store.put(key, b"x"))
    for start_after in (keys[4], target.key("09"), keys[-1], f"{target.folder}/"):
        above = [key for key in keys if key > start_after]
        _compare(await _list(target, start_after=start_after), above)
    return ""


@check("Listing folder a does not show ab, because one log must not see another's objects.")
async def list_folder(target: CheckFolder) -> str:
    inside = [target.key("a/1"), target.key("a/b/2")]
    outside = [target.key(name) for name in ("a-b", "a=", "ab/1", "b/a/1")]
    for keys in (outside, inside):
        await for_each(keys, lambda key: target.store.put(key, b"x"))
    _compare(await _list(target, "a"), inside)
    _compare(await _list(target, "nothing"), [])
    return ""


@check(
    "The folders below a folder are listed without their contents, because this is how "
    "streams are found."
)
async def list_folders(target: CheckFolder) -> str:
    names = "a/1 a/b/2 a-b ab/1 a./x/y/z z".split()
    await for_each([target.key(name) for name in names], lambda key: target.store.put(key, b"x"))
    _compare(await _folders(target), ["a", "a.", "ab"])
    _compare(await _folders(target, "a"), ["b"])
    _compare(await _folders(target, "nothing"), [])
    return ""


@check("A listing of more than one page is whole, because logs have more than 1,000 objects.")
async def list_pages(target: CheckFolder) -> str:
    count = target.sizes.listed
    if count < 1:
        raise CheckSkipped("0 objects requested")
    keys = [target.key(f"{number:06d}") for number in range(count)]
    written = 0

    async def write(key: str) -> None:
        nonlocal written
        await target.store.put(key, b"x")
        written += 1
        target.advance(written, count)

    await for_each(keys, write)
    _compare(await _list(target), keys)
    middle = count // 2
    _compare(await _list(target, start_after=keys[middle]), keys[middle + 1 :])
    pages = "more than one page" if count > LIST_PAGE_KEYS else "one page only"
    return f"{count:,} keys, {pages}"


@check("Deleting is visible at once and may be repeated, because cleaning up is retried.")
async def delete(target: CheckFolder) -> str:
    key, again = target.key("object"), nonce()
    await target.store.put(key, nonce())
    await target.store.delete(key)
    expect(await _is_absent(target, key), "a deleted object can still be read")
    _compare(await _list(target), [])
    await target.store.delete(key)
    await target.store.put_if_absent(key, again, token=again)
    expect((await target.store.get(key)).data == again, "a deleted key cannot be used again")
    return ""


@check("A large object, sent in parts, reads back whole and in chunks, because segments are large.")
async def large_object(target: CheckFolder) -> str:
    size = target.sizes.large_bytes
    if size < 1:
        raise CheckSkipped("0 bytes requested")
    key, start = target.key("object"), nonce()
    expected = (start + bytes(range(256)) * (size // 256 + 1))[:size]
    version = await target.store.put(key, expected)
    target.advance(size, 2 * size)
    stored = await target.store.get(key)
    expect(stored.data == expected, "a large object is not what was sent")
    read = 0
    try:
        async for chunk in target.store.get_stream(key):
            expect(chunk == expected[read : read + len(chunk)], "a stream differs from the object")
            read += len(chunk)
            target.advance(size + read, 2 * size)
    except Unavailable as error:
        raise Violation(f"a stream cannot be read though the whole can: {error}") from error
    expect(read == size, f"a stream of {size:,} bytes ended after {read:,}")
    # Nothing is ever replaced on the strength of this answer, and several servers get it wrong.
    note = "" if stored.version == version else "; the answer named another version (not relied on)"
    return f"{size / MIB:.0f} MiB{note}"


async def _is_absent(target: CheckFolder, key: str) -> bool:
    """Absent for a get and for a head; a store where the two disagree is caught here too."""
    answers = []
    for ask in (target.store.get, target.store.head):
        try:
            await ask(key)
        except NotFound:
            answers.append(True)
        else:
            answers.append(False)
    return all(answers)


async def _list(target: CheckFolder, folder: str = "", *, start_after: str = "") -> list[str]:
    prefix = f"{target.folder}/{folder}"
    return [meta.key async for meta in target.store.list(prefix, start_after=start_after)]


async def _folders(target: CheckFolder, folder: str = "") -> list[str]:
    return list(await target.store.folders(f"{target.folder}/{folder}"))


def _compare(listed: list[str], expected: list[str]) -> None:
    missing, extra = set(expected) - set(listed), set(listed) - set(expected)
    first = min(missing or extra, default="")
    expect(not missing, f"{len(missing)} of {len(expected)} keys are not listed, first {first}")
    expect(not extra, f"{len(extra)} keys are listed and should not be, first {first}")
    expect(listed == expected, "a listing is not in the order of its keys, or repeats some")
