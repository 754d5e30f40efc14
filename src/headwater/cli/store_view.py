"""How a run of the conformance suite looks: a live bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from headwater.cli.render import CommandConsole
from headwater.store.conformance import CheckProgress as Step
from headwater.store.conformance import CheckResult, StoreReport

MARKS: Final = {
    "pass": ("✓", "green"),
    "fail": ("✗", "bold red"),
    "skipped": ("–", "dim"),
    "unfinished": ("?", "yellow"),
}
NAME_WIDTH: Final = 21
LEFT_BEHIND_SHOWN: Final = 3


class CheckView:
    """Shows each check as it ends, and what is under way below them."""

    def __init__(self, url: str, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or CommandConsole(quiet=quiet)
        self._url = url
        self._bar = Progress(
            SpinnerColumn(style="cyan"),
            TextColumn("{task.description}", style="cyan"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("connecting", total=None)

    def __enter__(self) -> CheckView:
        self._line(Text.assemble("checking ", (self._url, "bold")))
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, step: Step) -> None:
        """Take in one step of the run."""
        if step.result is None:
            total = step.total or None
            self._bar.update(self._task, description=step.check, completed=step.done, total=total)
        else:
            self._line(_result_line(step.result))
            self._bar.update(self._task, description="cleaning up", completed=0, total=None)

    def conclude(self, report: StoreReport) -> None:
        """The verdict, and what it took."""
        self._explain(report)
        self._line(Text())
        self._line(Text(report.verdict, style="bold green" if report.safe else "bold red"))
        self._line(Text())
        self._console.print(_operations_table(report))
        cost = (
            f"about ${report.cost_usd:.4f} at list prices" if report.cost_usd else "free of charge"
        )
        self._line(Text(f"{report.requests:,} requests, {cost}", style="dim"))
        if report.left_behind:
            self._left_behind(report)

    def _explain(self, report: StoreReport) -> None:
        """What each failed check demands and why, since its name alone will not convince."""
        for check in report.checks:
            if check.status in ("fail", "unfinished"):
                _, style = MARKS[check.status]
                self._line(Text())
                self._line(Text(f"{check.name}: {check.status}", style=style))
                for text, look in ((check.claim, ""), (check.detail, style)):
                    self._console.print(Padding(Text(text, style=look), (0, 0, 0, 2)))

    def _left_behind(self, report: StoreReport) -> None:
        count = len(report.left_behind)
        self._line(Text(f"{count} objects could not be removed:", style="yellow"))
        for key in report.left_behind[:LEFT_BEHIND_SHOWN]:
            self._line(Text(f"  {key}"))
        if count > LEFT_BEHIND_SHOWN:
            self._line(Text(f"  and {count - LEFT_BEHIND_SHOWN} more below {report.prefix}/"))

    def _line(self, text: Text) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal)


def _result_line(result: CheckResult) -> Text:
    mark, style = MARKS[result.status]
    seconds = f"{result.duration_s:7.2f} s"
    # A long complaint comes in full below; here it would tear the list apart.
    detail = result.detail if result.status in ("pass", "skipped") else "see below"
    return Text.assemble(
        (f"{mark} {result.status:<10}", style),
        f" {result.name:<{NAME_WIDTH}}",
        (seconds, "dim"),
        (f"  {detail}".rstrip(), "dim" if result.status == "pass" else style),
    )


def _operations_table(report: StoreReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    table.add_column("operation")
    for column in ("requests", "refused or failed", "retries", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for name, stats in sorted(report.operations.items()):
        table.add_row(
            name,
            f"{stats.requests:,}",
            f"{stats.failures:,}",
            f"{stats.retries:,}",
            f"{stats.p50_ms:.2f}",
            f"{stats.p99_ms:.2f}",
        )
    return table
