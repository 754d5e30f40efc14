"""`headwater demo`: producers, a consumer, one of each killed half-way, and the proof by counts.

The processes share nothing but a directory. Producers send numbered records under ids of their own.
One is killed with SIGKILL and started again: it is told which of its records were accepted last,
and goes on with the next. So is the consumer: it goes on after the batch that it wrote down last.
Then what producers were told is compared with what the consumer wrote.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import typer
from rich.console import Console

from headwater.buffer.stream import create_stream
from headwater.cli.advice import EXIT_NO, command
from headwater.cli.console import CommandConsole
from headwater.cli.demo_consumer import Line
from headwater.cli.demo_count import Count, accepted_numbers, count, delivered_numbers
from headwater.cli.demo_process import DemoProcess, Tail
from headwater.cli.demo_view import DemoBars, show_counts, show_next
from headwater.cli.loop import run as run_loop
from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.store import open_store

STREAM: Final = "events"
POLL_S: Final = 0.05
# Starting processes, on a busy machine, takes a while beyond the time given for the work.
SPARE_S: Final = 60.0
VICTIM: Final = 1
"""Which producer is killed."""


class Demo:
    """One run: its processes, what they have said so far, and when to kill which."""

    def __init__(
        self, console: Console, root: Path, *, producers: int, records: int, seconds: float
    ) -> None:
        self.url = f"file://{root}/store"
        self.console = console
        self._records = records
        self._folder = root / "reports"
        self._folder.mkdir()
        self.names = [f"producer-{number}" for number in range(1, producers + 1)]
        self.producers = [
            DemoProcess(
                name,
                "headwater.cli.demo_producer",
                [self.url, STREAM, name, str(records), str(seconds), str(self._report(name))],
                self._folder / f"{name}.log",
            )
            for name in self.names
        ]
        self._ledger = self._folder / "ledger"
        self.consumer = DemoProcess(
            "consumer",
            "headwater.cli.demo_consumer",
            [self.url, STREAM, str(producers * records), str(self._ledger)],
            self._folder / "consumer.log",
        )
        self._tails = {name: Tail(self._report(name)) for name in self.names}
        self._ledger_tail = Tail(self._ledger)
        self.accepted = dict.fromkeys(self.names, 0)
        self.delivered = 0

    @property
    def total(self) -> int:
        """All records of all producers."""
        return self._records * len(self.names)

    @property
    def is_done(self) -> bool:
        """Whether every process came to its end; raises if any failed."""
        done = [process.is_done for process in (*self.producers, self.consumer)]
        return all(done)

    def start(self) -> None:
        """Start every process."""
        for process in (*self.producers, self.consumer):
            process.start()

    def kill(self) -> None:
        """End whatever still runs."""
        for process in (*self.producers, self.consumer):
            process.kill()

    def look(self) -> None:
        """Take in what the processes have written since the last look."""
        for name, tail in self._tails.items():
            for line in tail.lines():
                word, *numbers = line.split()
                self.accepted[name] = max(self.accepted[name], int(numbers[-1]))
                if word == b"resumed" and int(numbers[0]):
                    after = self.accepted[name]
                    self.console.print(
                        f"{name} was told that {after:,} are accepted, and goes on from there",
                        soft_wrap=True,
                    )
        for line in self._ledger_tail.lines():
            self.delivered = msgspec.json.decode(line, type=Line).through

    def strike(self) -> None:
        """Kill one producer at a third of its records, and the consumer at half of all."""
        victim = self.producers[VICTIM]
        if victim.lives == 1 and self.accepted[victim.name] > self._records // 3:
            victim.kill()
            self._say(f"{victim.name} killed with {self.accepted[victim.name]:,} records accepted")
            victim.start()
        if self.consumer.lives == 1 and self.delivered > self.total // 2:
            self.consumer.kill()
            self._say(f"the consumer killed with {self.delivered:,} records written down")
            self.consumer.start()

    def counts(self) -> dict[str, Count]:
        """The comparison, by producer."""
        values = [
            value
            for line in Tail(self._ledger).lines()
            for value in msgspec.json.decode(line, type=Line).values
        ]
        delivered = delivered_numbers(values)
        return {
            name: count(accepted_numbers(self._report(name).read_text()), delivered.get(name, []))
            for name in self.names
        }

    def _report(self, name: str) -> Path:
        return self._folder / f"{name}.report"

    def _say(self, words: str) -> None:
        self.console.print(f"[yellow]{words}[/yellow], and started again", soft_wrap=True)


def run_demo(*, producers: int, records: int, seconds: float) -> int:
    """Run the demo and print its table; 0 if everything accepted was delivered once, in order."""
    console = CommandConsole()
    root = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    demo = Demo(console, root, producers=producers, records=records, seconds=seconds)
    console.print(
        f"{producers} producers and a consumer share nothing but [bold]{demo.url}[/bold]",
        soft_wrap=True,
    )
    try:
        run_loop(_work(demo, seconds))
    except BaseException:
        typer.echo(f"what it wrote stays there until: rm -r {shlex.quote(str(root))}", err=True)
        raise
    finally:
        demo.kill()
    counts = demo.counts()
    killed = {process.name for process in demo.producers if process.lives > 1}
    show_counts(console, counts, killed)
    place, headwater = shlex.quote(demo.url), command()
    show_next(
        console,
        [
            f"{headwater} read {place} {STREAM} --limit 5",
            f"{headwater} lag {place} {STREAM}",
            f"{headwater} stream describe {place} {STREAM}",
            f"{headwater} inspect queue {place} --stream {STREAM}",
            f"rm -r {shlex.quote(str(root))}",
        ],
    )
    return 0 if all(row.is_exact for row in counts.values()) else EXIT_NO


async def _work(demo: Demo, seconds: float) -> None:
    async with open_store(demo.url) as store:
        await create_stream(store, STREAM)
    started_s = runtime.monotonic_s()
    demo.start()
    with DemoBars(demo.console, demo.names, demo.total) as bars:
        while not demo.is_done:
            spent_s = runtime.monotonic_s() - started_s
            if spent_s > seconds + SPARE_S:
                raise HeadwaterError(f"the processes are not done after {spent_s:.0f} s")
            demo.look()
            demo.strike()
            bars.show(demo.accepted, demo.delivered)
            await runtime.sleep(POLL_S)
        demo.look()
        bars.show(demo.accepted, demo.delivered)
