"""`headwater log …`: mending a log on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from headwater.cli.advice import EXIT_NO, HeadwaterGroup

if TYPE_CHECKING:
    from headwater.log.spool.repair import Repaired

log_app = typer.Typer(
    cls=HeadwaterGroup,
    no_args_is_help=True,
    help="Mend a log on this machine.",
)


@log_app.callback()
def log() -> None:
    """Mend a log on this machine."""


@log_app.command()
def repair(
    folder: str = typer.Argument(metavar="FOLDER", help="The folder of the damaged log."),
    source: list[str] = typer.Option(
        [], "--from", metavar="FOLDER", help="The folder of another copy of the log; repeatable."
    ),
    give_up: bool = typer.Option(
        False, "--give-up", help="Write what no copy has as lost, so that readers can go on."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Look at every frame of a log, and mend what can be mended, from where it can be had.

    Nobody may have the log open. What was damaged is kept, under a name ending in .damaged.
    Exit status: 0 if the log is whole now, 1 if something is still missing.
    """
    from headwater.log.spool.repair import SpoolSource, repair

    sources = [SpoolSource(os.path.abspath(one)) for one in source]
    report = repair(os.path.abspath(folder), sources, give_up=give_up)
    if as_json:
        shown = asdict(report) | {"missing": [one._asdict() for one in report.missing]}
        typer.echo(json.dumps(shown, indent=2))
    else:
        _show(report)
    if report.missing:
        raise typer.Exit(EXIT_NO)


def _show(report: Repaired) -> None:
    typer.echo(f"{report.segments:,} segments looked at, frame by frame")
    for mended in report.mended:
        typer.echo(f"mended   LSN {mended.first_lsn} to {mended.last_lsn} from {mended.source}")
    for path in report.kept:
        typer.echo(f"kept     {path}")
    for missing in report.missing:
        typer.echo(f"missing  {missing}: no copy has it")
    if report.missing:
        typer.echo("→ name another copy with --from, or give them up with --give-up")
    elif not report.mended:
        typer.echo("nothing is damaged")
