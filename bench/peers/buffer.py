"""The buffer against what one would pick instead: `python -m bench.peers.buffer [--quick]`.

2 M records of 100 B and 200 k of 1 KiB, random bytes, to one partition of each: produced until all
are acknowledged, and consumed to a list of bytes and to an Arrow table. Headwater runs on a file://
store, which syncs every object and its name before it answers; Kafka, Redis Streams, SQLite and
deltalake run in the same rounds, in an order that turns, and each figure is the median of the
rounds. A round checks that what was consumed is what was produced.

CPU is processor time per record of this process and of the peer's server, all threads. It is the
figure to trust on a machine that others use too. What an acknowledgement means differs, and is
printed: a log that syncs cannot be as fast as one that does not, and is not meant to be.

No way of consuming acknowledges or commits. Peers that have no call for one record, or for Arrow,
have no such row; what cannot be installed here is named with its reason.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from bench._report import machine, table
from bench.peers._deltalake import Deltalake
from bench.peers._headwater import Headwater, HeadwaterBlocking
from bench.peers._kafka import Kafka, KafkaSynced
from bench.peers._measure import Spent
from bench.peers._peer import (
    ARROW,
    EACH,
    LISTS,
    TO_ARROW,
    TO_BYTES,
    Consumed,
    Peer,
    Records,
    make_records,
)
from bench.peers._redis import RedisAlways, RedisEverySecond
from bench.peers._sqlite import Sqlite
from tests.interop.cache import Unavailable
from tests.interop.process import StartFailed

PEERS: tuple[type[Peer], ...] = (
    Headwater,
    HeadwaterBlocking,
    Kafka,
    KafkaSynced,
    RedisAlways,
    RedisEverySecond,
    Sqlite,
    Deltalake,
)
WAYS = (EACH, LISTS, ARROW, TO_BYTES, TO_ARROW)
RECORDS = {"100 B": (100, 2_000_000), "1 KiB": (1024, 200_000)}
ROUNDS = 3
QUICK_PART = 50
WARM_UP_PART = 20
OURS = Headwater.name

Results = dict[str, dict[str, Spent]]
"""Way → peer → what it took."""


def run_round(peer: Peer, records: Records, results: Results | None) -> None:
    """Every way of one peer once; without results it only warms up."""

    def spent(way: str) -> Spent:
        return Spent() if results is None else results[way].setdefault(peer.name, Spent())

    given = records
    for way, produce in peer.producing().items():
        share = peer.shares.get(way, 1.0)
        given = records if share == 1.0 else records.head(max(1, round(len(records) * share)))
        peer.empty()
        spent(way).run(produce(given), len(given), peer.server_pids())
    for way, consume in peer.consuming().items():
        run = consume(len(given))
        check(peer, given, spent(way).run(run, len(given), peer.server_pids()))


def check(peer: Peer, records: Records, found: Consumed) -> None:
    """What was consumed is what was produced: nothing here is fast by losing records."""
    values = found.column(0).to_pylist() if isinstance(found, pa.Table) else found
    expected = records.values
    if not peer.is_ordered:
        values, expected = sorted(values), sorted(expected)
    if values != expected:
        raise RuntimeError(f"{peer.name} gave other records than it was given")


def compare(peers: list[Peer], records: Records, rounds: int) -> Results:
    """All peers in turns."""
    results: Results = {way: {} for way in WAYS}
    for peer in peers:
        run_round(peer, records.head(max(1, len(records) // WARM_UP_PART)), None)
    for number in range(rounds):
        turn = number % len(peers)
        for peer in peers[turn:] + peers[:turn]:
            print(f"  round {number + 1} of {rounds}: {peer.name}", file=sys.stderr, flush=True)
            run_round(peer, records, results)
        for peer in peers:
            peer.empty()
    return results


HEAD = "way|of|records/s|MB/s|CPU µs|client|server|speed÷ours|CPU÷ours".split("|")


def show(title: str, size_bytes: int, results: Results) -> None:
    """One table, the fastest of each way first."""
    rows = [
        [way, name, *cells(spent, results[way].get(OURS), size_bytes)]
        for way in WAYS
        for name, spent in sorted(results[way].items(), key=lambda pair: -pair[1].rate)
    ]
    table(title, HEAD, rows)


def cells(spent: Spent, ours: Spent | None, size_bytes: int) -> list[str]:
    """The figures of one row."""
    found = [f"{spent.rate:,.0f}", f"{spent.rate * size_bytes / 1e6:,.1f}"]
    if spent.knows_server:
        found += [f"{us:.2f}" for us in (spent.cpu_us, spent.client_us, spent.server_us)]
    else:
        found += ["?", f"{spent.client_us:.2f}", "?"]
    if ours is None:
        return [*found, "", ""]
    cpu = f"{spent.cpu_us / ours.cpu_us:.2f}" if spent.knows_server else "?"
    return [*found, f"{spent.rate / ours.rate:.2f}", cpu]


def as_json(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """The figures, for machines."""
    return {
        way: {
            name: {
                "records_per_s": round(spent.rate),
                "client_us": round(spent.client_us, 3),
                "server_us": round(spent.server_us, 3) if spent.knows_server else -1.0,
                "runs": spent.runs,
            }
            for name, spent in found.items()
        }
        for way, found in results.items()
    }


def start(kinds: tuple[type[Peer], ...], root: Path) -> tuple[list[Peer], dict[str, str]]:
    """Those that can be had, and why the others cannot."""
    peers: list[Peer] = []
    skipped: dict[str, str] = {}
    for kind in kinds:
        peer = kind(root / kind.__name__.lower())
        try:
            peer.start()
        except (Unavailable, StartFailed) as reason:
            peer.stop()
            skipped[kind.name] = str(reason).strip()
        else:
            peers.append(peer)
    return peers, skipped


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description="The buffer against its peers.")
    parser.add_argument("--quick", action="store_true", help="one round of few records")
    parser.add_argument("--records", type=int, help="records of each size")
    parser.add_argument("--rounds", type=int, help=f"rounds ({ROUNDS})")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="peers whose name begins so")
    parser.add_argument("--dir", type=Path, help="where their files go (a local disk)")
    parser.add_argument("--json", action="store_true", help="figures for machines, on one line")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    kinds = tuple(kind for kind in PEERS if _is_wanted(kind.name, options.only))
    root = Path(tempfile.mkdtemp(prefix="headwater-peers-", dir=options.dir))
    peers: list[Peer] = []
    found: dict[str, Results] = {}
    try:
        peers, skipped = start(kinds, root)
        for title, (size_bytes, count) in RECORDS.items():
            wanted = options.records or (count // QUICK_PART if options.quick else count)
            found[title] = compare(peers, make_records(wanted, size_bytes), rounds)
            if not options.json:
                heading = f"{wanted:,} records of {title}, medians of {rounds} rounds"
                show(heading, size_bytes, found[title])
    finally:
        for peer in peers:
            peer.stop()
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        figures = {title: as_json(results) for title, results in found.items()}
        print(json.dumps({"machine": machine(), "skipped": skipped, "figures": figures}))
        return
    print("\nWhat an acknowledged record survives:")
    for peer in peers:
        print(f"  {peer.name:20} {peer.promise}")
        for way, share in peer.shares.items():
            print(f"  {'':20} ({way}: {share:.1%} of the records)")
    for name, reason in skipped.items():
        print(f"  {name:20} SKIPPED: {reason}")
    print(f"\n{machine()}")


def _is_wanted(name: str, only: list[str] | None) -> bool:
    return not only or any(name.lower().startswith(one.lower()) for one in only)


if __name__ == "__main__":
    main()
