"""The command line: registers every command and group of commands.

Commands import what they need when they run: `headwater --help` should answer at once.
"""

from __future__ import annotations

import sys

import typer

from headwater.cli.command_line import HeadwaterTyper, output_failed
from headwater.cli.dead_letter_commands import dead_letter_app
from headwater.cli.doctor_command import doctor, installed_version
from headwater.cli.group_commands import group_app
from headwater.cli.inspect_command import inspect_app
from headwater.cli.log_commands import log_app, slot_app
from headwater.cli.options import AS_JSON
from headwater.cli.produce_command import produce
from headwater.cli.read_command import lag, read
from headwater.cli.render import show
from headwater.cli.report import Report
from headwater.cli.store_commands import store_app
from headwater.cli.stream_commands import stream_app
from headwater.cli.stream_records import copy, gc, truncate
from headwater.cli.terminal import open_closed_streams, write_whole
from headwater.cli.tier_commands import tier_app

app = HeadwaterTyper(
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)
app.add_typer(store_app, name="store")
stream_app.command()(truncate)
stream_app.command()(copy)
app.add_typer(stream_app, name="stream")
app.add_typer(group_app, name="group")
app.add_typer(dead_letter_app, name="dead-letter")
app.add_typer(slot_app, name="slot")
app.add_typer(inspect_app, name="inspect")
app.add_typer(log_app, name="log")
app.add_typer(tier_app, name="tier")
for command in (produce, read, lag, gc, doctor):
    app.command()(command)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib import metadata

        typer.echo(f"headwater {metadata.version('headwater')}")
        raise typer.Exit


@app.callback()
def headwater(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """A log on object storage, without brokers or servers.

    If a command gets no URL, it uses the address in HEADWATER_URL.
    """


@app.command()
def demo(
    orders: int = typer.Option(200_000, min=1_000, help="How many orders the two producers send."),
    seconds: float = typer.Option(20.0, min=0.1, help="The least time that sending takes."),
) -> None:
    """Run producers, a PySpark job and a table, kill some of them, and check for exactly once.

    Exit status: 0 if every order is in the table exactly once, 1 if not.
    """
    from headwater.cli.demo_run import run_demo

    run_demo(orders=orders, seconds=seconds)


@app.command()
def version(as_json: bool = AS_JSON) -> None:
    """Show the installed versions, for a problem report."""
    import platform

    packages = ("headwater", "obstore", "pyarrow", "pyspark")
    versions = {package: installed_version(package) for package in packages}
    versions["python"] = platform.python_version()
    machine = platform.platform(terse=True)
    facts = {name: one or "not installed" for name, one in versions.items()}
    facts["python"] += f" on {machine}"
    show(Report(facts=facts, record={**versions, "platform": machine}), as_json=as_json)


def run_app() -> None:
    """Run the command as a process of its own."""
    open_closed_streams()
    write_whole()
    try:
        app(prog_name="headwater")
    except OSError as error:
        # Help is printed before any command runs.
        sys.exit(output_failed(error))
