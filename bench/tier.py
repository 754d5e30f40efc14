"""What the tier costs: `python -m bench.tier [--quick] [--only NAME …]`.

- events encoded and decoded per second, of each kind;
- look-ups per second among 1,000, 100,000 and 1,000,000 segments of one partition, by epoch and
  offset, by time, and the cover of a range that ten segments hold: O(log n) means that a thousand
  times the segments take little longer;
- a million events replayed (a copy that began, a copy that finished), which is how fast a cache is
  filled from its log, against restoring the same cache from a snapshot;
- snapshots: a cache taken as a value, encoded, decoded and restored, and the bytes of it;
- the memory of it, by the process's resident size before and after, per segment: of segments as a
  Kafka broker writes them (no custom metadata), and of ours (60 bytes of them). Beside it, the same
  segments as Python objects in a dict, which is what one would write first;
- the log to segments, and ranges of LSNs back, against pyarrow writing and reading the same table;
- a reader that catches up from the tier, against pyarrow and bare gets (`_tier_reader.py`);
- for how long copying, comparing and reading hold up the event loop (`_tier_loop.py`);
- the event log in object storage: publishing, catching up, high-water marks
  (`_tier_eventlog.py`).

Times are processor time. An epoch has 100,000 segments.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench._report import Goal, Section, Sections, measure
from bench._tier_eventlog import sections as event_log_sections
from bench._tier_loop import section as loop_section
from bench._tier_reader import sections as reader_sections
from bench._tier_segments import copying, fetching
from headwater.tier import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TierCache,
    TopicIdPartition,
    decode_event,
    encode_event,
)
from headwater.tier.cache import PartitionCache
from headwater.tier.events import Epochs, stamp
from headwater.tier.snapshot import (
    Snapshot,
    decode_snapshot,
    dump_all,
    encode_snapshot,
    restore_all,
)

SIZES = (1_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 10_000)
REPLAYED = 1_000_000
QUICK_REPLAYED = 20_000
ROUNDS = 5
CODED = 100_000
LOOKED_UP = 20_000
RECORDS = 1_000_000
QUICK_RECORDS = 200_000
BLOCK = 20_000
SEGMENT_LSNS = 1_000
EPOCH_SEGMENTS = 100_000
PLACE = TopicIdPartition(uuid.UUID(int=0xCA), "orders", 7)
MIB = 1 << 20
GOAL_BYTES = 256


def epoch_at(number: int) -> int:
    """The epoch in which the segment with this number begins."""
    return number // EPOCH_SEGMENTS


def segment(number: int, custom: bytes | None) -> SegmentMetadata:
    """The copy of the segment with this number; in the last one of an epoch the next begins."""
    start = 1 + number * SEGMENT_LSNS
    epoch = epoch_at(number)
    epochs: Epochs = ((epoch, start),)
    if epoch_at(number + 1) > epoch:
        epochs += ((epoch + 1, start + SEGMENT_LSNS // 2),)
    return SegmentMetadata(
        segment_id=SegmentId(PLACE, uuid.UUID(int=(number * 0x9E3779B97F4A7C15 << 64) % 2**128)),
        start_offset=start,
        end_offset=start + SEGMENT_LSNS - 1,
        broker_id=1,
        max_timestamp_ms=1_700_000_000_000 + number * 60_000 + number * 7919 % 100_000,
        event_timestamp_ms=1_700_000_000_000 + number * 60_000,
        epochs=epochs,
        size_bytes=64 * MIB,
        custom_metadata=custom,
    )


def history(segments: int, custom: bytes | None) -> Iterator[SegmentMetadata | SegmentUpdate]:
    """Copies that begin and finish, one after the other.

    Custom metadata are bytes of their own for each event, as decoding makes them.
    """
    for number in range(segments):
        own = None if custom is None else bytes(bytearray(custom))
        began = segment(number, own)
        yield began
        own = None if custom is None else bytes(bytearray(custom))
        yield SegmentUpdate(
            began.segment_id, 1, began.event_timestamp_ms + 9, SegmentState.COPY_FINISHED, own
        )


def filled(segments: int, custom: bytes | None = None) -> TierCache:
    """A cache that has followed it."""
    cache = TierCache()
    for event in history(segments, custom):
        cache.apply(event)
    return cache


def per_second(action: Callable[[Any], object], items: list[Any], rounds: int) -> float:
    """How often it is done in a second of processor time, the median of the rounds."""
    spent = []
    for _ in range(rounds):
        gc.collect()
        started_s = time.process_time()
        for item in items:
            action(item)
        spent.append(time.process_time() - started_s)
    return len(items) / statistics.median(spent)


def codec(count: int, rounds: int) -> Section:
    """Events to bytes and back."""
    section = Section(
        f"Events in bytes, {count:,} of each kind, medians of {rounds}",
        ["event", "bytes", "encoded/s", "decoded/s"],
    )
    began = segment(7, stamp(3, bytes(48)))
    kinds: dict[str, Any] = {
        "segment": began,
        "update": SegmentUpdate(began.segment_id, 1, 9, SegmentState.COPY_FINISHED, stamp(3)),
        "partition delete": PartitionDelete(PLACE, 1, 9, PartitionDeleteState.MARKED),
    }
    for name, event in kinds.items():
        data = encode_event(event)
        encoded = per_second(encode_event, [event] * count, rounds)
        decoded = per_second(decode_event, [data] * count, rounds)
        section.rows.append([name, f"{len(data)}", f"{encoded:,.0f}", f"{decoded:,.0f}"])
    return section


def rates_of(partition: PartitionCache, pairs: list[tuple[int, int]], rounds: int) -> list[float]:
    """Look-ups a second: by offset, by time, covers."""

    def at(pair: tuple[int, int]) -> object:
        return partition.segment_at(*pair)

    def at_time(pair: tuple[int, int]) -> object:
        return partition.segment_at_time(pair[0], 1_700_000_000_000 + pair[1] * 60)

    def cover(pair: tuple[int, int]) -> object:
        return partition.cover(pair[1], pair[1] + 10 * SEGMENT_LSNS)

    return [per_second(ask, pairs, rounds) for ask in (at, at_time, cover)]


def look_ups(sizes: tuple[int, ...], asked: int, rounds: int) -> Section:
    """What is asked of caches of several sizes."""
    section = Section(
        f"Look-ups a second, {asked:,} at random places, medians of {rounds}; beside them how many "
        f"times as long one takes as among {sizes[0]:,} segments",
        ["segments", "by offset", "offset ×", "by time", "time ×", "cover of 10", "cover ×"],
    )
    least: list[float] = []
    times: list[float] = []
    for size in sizes:
        partition = filled(size, stamp(3, bytes(48))).partition(PLACE)
        if partition is None:
            raise AssertionError("a cache that was filled knows its partition")
        chance = random.Random(size)
        numbers = [chance.randrange(size) for _ in range(asked)]
        pairs = [(epoch_at(number), 1 + number * SEGMENT_LSNS) for number in numbers]
        found = rates_of(partition, pairs, rounds)
        least = least or found
        times = [before / one for before, one in zip(least, found, strict=True)]
        cells = [(f"{one:,.0f}", f"{ratio:.2f}") for one, ratio in zip(found, times, strict=True)]
        section.rows.append([f"{size:,}", *itertools.chain.from_iterable(cells)])
    what = f"by offset, {sizes[-1]:,} segments ÷ {sizes[0]:,}"
    section.goals.append(Goal(what, 3, times[0], at_least=False, timed=True))
    return section


def replay(events: int) -> Section:
    """A cache from its log, and the same from a snapshot."""
    section = Section(
        f"{events:,} events of {events // 2:,} segments: processor time until all is known",
        ["from", "seconds", "a second", "replay ÷ it"],
    )
    cache, replayed_s = TierCache(), 0.0
    said = history(events // 2, stamp(3, bytes(48)))
    while written := [encode_event(event) for event in itertools.islice(said, BLOCK)]:
        started_s = time.process_time()
        for data in written:
            cache.apply(decode_event(data))
        replayed_s += time.process_time() - started_s
    snapshot = encode_snapshot(_taken(cache))
    del cache
    started_s = time.process_time()
    _restored(decode_snapshot(snapshot))
    restored_s = time.process_time() - started_s
    for name, spent_s in (("events", replayed_s), ("a snapshot", restored_s)):
        per_s, ratio = f"{events / spent_s:,.0f} events", f"{replayed_s / spent_s:.2f}"
        section.rows.append([name, f"{spent_s:.2f}", per_s, ratio])
    return section


def snapshots(sizes: tuple[int, ...]) -> Section:
    """How fast a manager writes what it knows, and goes on from it."""
    section = Section(
        "Snapshots of one metadata partition, µs a segment",
        ["segments", "taken", "encoded", "decoded", "restored", "bytes a segment"],
    )
    for size in sizes:
        cache = filled(size, stamp(3, bytes(48)))
        value: Any = cache
        row = [f"{size:,}"]
        data = b""
        for step in (_taken, encode_snapshot, decode_snapshot, _restored):
            started_s = time.process_time()
            value = step(value)
            row.append(f"{1e6 * (time.process_time() - started_s) / size:.1f}")
            data = value if isinstance(value, bytes) else data
        section.rows.append([*row, f"{len(data) / size:.0f}"])
    return section


def _taken(cache: TierCache) -> Snapshot:
    return Snapshot(uuid.UUID(int=1), 1, 0, 0, dump_all(cache))


def _restored(snapshot: Snapshot) -> TierCache:
    return restore_all(snapshot.dumps)


def resident_bytes() -> int:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def weigh(kind: str, segments: int) -> int:
    """Fill one cache in this process; the memory it took."""
    custom = None if kind == "Kafka's" else stamp(3, bytes(48))
    segment(0, custom)
    gc.collect()
    before = resident_bytes()
    if kind == "objects in a dict":
        events = history(segments, custom)
        cache: Any = {event.segment_id: event for event in events if not _is_update(event)}
    else:
        cache = filled(segments, custom)
    gc.collect()
    weight = resident_bytes() - before
    del cache
    return weight


def _is_update(event: SegmentMetadata | SegmentUpdate) -> bool:
    return isinstance(event, SegmentUpdate)


def memory(segments: int) -> list[Section]:
    """Each in a process of its own: memory that one gave back would hide what the next one took."""
    if not Path("/proc/self/statm").exists():
        return []
    section = Section(
        f"Memory of {segments:,} segments of one partition", ["cache", "MiB", "bytes a segment"]
    )
    for kind in ("Kafka's", "ours, 60 B custom metadata", "objects in a dict"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            weight = pool.submit(weigh, kind, segments).result()
        section.rows.append([kind, f"{weight / MIB:,.0f}", f"{weight / segments:,.0f}"])
        if kind.startswith("ours"):
            what = "bytes a segment, ours"
            section.goals.append(Goal(what, GOAL_BYTES, weight / segments, at_least=False))
    return [section]


def sections(_: Path, quick: bool) -> Sections:
    """Name → what measures it."""
    sizes = QUICK_SIZES if quick else SIZES
    rounds = 3 if quick else ROUNDS
    records = QUICK_RECORDS if quick else RECORDS
    return {
        "segments": lambda: [copying(records, rounds), fetching(records, rounds)],
        "reader": lambda: reader_sections(records, rounds),
        "loop": lambda: [loop_section(records)],
        "codec": lambda: [codec(CODED // 10 if quick else CODED, rounds)],
        "look-ups": lambda: [look_ups(sizes, LOOKED_UP, rounds)],
        "replay": lambda: [replay(QUICK_REPLAYED if quick else REPLAYED)],
        "snapshots": lambda: [snapshots(sizes)],
        "memory": lambda: memory(sizes[-1]),
        "event-log": lambda: event_log_sections(quick),
    }


if __name__ == "__main__":
    measure(__doc__, sections)
