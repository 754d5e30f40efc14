"""`headwater dead-letter …`: list, read, replay and drop the batches that could not be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from headwater.cli.advice import command
from headwater.cli.command_line import HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    STREAM,
    URL,
    YES,
    on_stream,
    wanted_partitions,
)
from headwater.cli.render import Progress, conclude, conclude_change, show
from headwater.cli.report import Report, json_value, size_words
from headwater.cli.terminal import confirm, gather_bounded
from headwater.core.errors import HeadwaterError, NotFound

if TYPE_CHECKING:
    from headwater.buffer.consumer import ConsumedBatch, DeadLetter, ReplayedLetter
    from headwater.buffer.stream import Stream

dead_letter_app = HeadwaterTyper(
    help="List, read, replay and drop the batches that could not be read."
)
SEQUENCE = typer.Option(
    [], "--sequence", min=0, help="Only the letter of this batch; may be repeated."
)


@dead_letter_app.command("list")
def list_letters(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """List the batches that consumers could not read, and continued without."""

    async def run(opened: Stream) -> list[DeadLetter]:
        return await _letters(opened, partition, [])

    show(describe_letters(on_stream(url, option, stream, run)), as_json=as_json)


@dead_letter_app.command("read")
def read_letters(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    sequence: list[int] = SEQUENCE,
    records: int = typer.Option(10, min=0, help="How many records of each batch to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show dead letters in full, and what their batches hold if they can be read by now.

    A batch can be read again once its object is restored, for example from a versioned bucket. Exit
    status: 0, or 1 if a batch cannot be read.
    """
    from headwater.buffer.consumer import fetch_dead_letter

    async def run(opened: Stream) -> list[Report]:
        letters = await _letters(opened, partition, sequence)

        async def describe(letter: DeadLetter) -> Report:
            # A report has the first records only, so that no more than a few batches are held.
            batch = await _outcome(fetch_dead_letter, opened, letter)
            return describe_letter(letter, batch, records)

        return await gather_bounded(describe, letters)

    parts = on_stream(url, option, stream, run)
    report = Report(parts=parts, record=[part.to_json() for part in parts])
    if not parts:
        report.say("there are no dead letters")
    conclude(report, good=all(part.mark == "✓" for part in parts), as_json=as_json)


@dead_letter_app.command()
def replay(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    sequence: list[int] = SEQUENCE,
    into: str | None = typer.Option(
        None, metavar="STREAM", help="Append to this stream of the same store; default: STREAM."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Append the records of dead letters again, exactly once, with new offsets.

    A letter that was replayed into the stream before is left out, so that the command can be
    repeated. Letters stay until they are dropped. Exit status: 0, or 1 if a batch could not be
    replayed.
    """
    from headwater.buffer.consumer import replay_dead_letter
    from headwater.buffer.stream import open_stream

    async def run(opened: Stream) -> list[ReplayedLetter | HeadwaterError]:
        target = opened
        if into is not None:
            target = await open_stream(opened.store, into, writing=True)
        letters.extend(await _letters(opened, partition, sequence))
        outcomes: list[ReplayedLetter | HeadwaterError] = []
        # In order: the records of a partition keep theirs.
        for letter in letters:
            outcomes.append(
                await _outcome(partial(replay_dead_letter, into=target), opened, letter)
            )
            progress.step(f"replaying into {target.name}", len(letters), "batches")
        return outcomes

    letters: list[DeadLetter] = []
    with Progress() as progress:
        outcomes = on_stream(url, option, stream, run, writing=into is None)
    report = describe_replay(stream, into or stream, letters, outcomes)
    good = not any(isinstance(one, HeadwaterError) for one in outcomes)
    conclude_change(report, good=good, as_json=as_json)


@dead_letter_app.command()
def drop(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    sequence: list[int] = SEQUENCE,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Show the letters that would be deleted, and delete nothing."
    ),
    yes: bool = YES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Delete dead letters; their batches, if they are there, stay.

    Shows the letters and asks first. Exit status: 0, or 1 if a letter could not be deleted.
    """
    from headwater.buffer.consumer import drop_dead_letter

    async def find(opened: Stream) -> list[DeadLetter]:
        return await _letters(opened, partition, sequence)

    async def run(opened: Stream) -> list[HeadwaterError | None]:
        async def drop_one(letter: DeadLetter) -> HeadwaterError | None:
            return await _outcome(drop_dead_letter, opened, letter)

        if opened.id != stream_id:
            raise NotFound(f"stream {stream!r} was deleted and created again: nothing was dropped")
        return await gather_bounded(drop_one, letters)

    letters = on_stream(url, option, stream, find)
    if dry_run or not letters:
        show(describe_letters(letters), as_json=as_json)
        return
    stream_id = letters[0].stream_id
    what = f"{_count(len(letters))} of stream {stream}"
    if not yes:
        show(describe_letters(letters), is_error=True)
        confirm(
            f"Permanently delete {what}?",
            unasked=f"there is no terminal to confirm the deletion of {what}: use --yes",
        )
    outcomes = on_stream(url, option, stream, run, writing=True)
    good = not any(outcomes)
    conclude_change(describe_drop(stream, letters, outcomes), good=good, as_json=as_json)


async def _letters(
    stream: Stream, partition: int | None, sequences: Sequence[int]
) -> list[DeadLetter]:
    """The letters that the options name, in order; `NotFound` if one of them is not there."""
    from headwater.buffer.consumer import list_dead_letters

    async def of_partition(number: int) -> list[DeadLetter]:
        return await list_dead_letters(stream, partition=number)

    wanted = wanted_partitions(stream, partition)
    letters = [one for part in await gather_bounded(of_partition, wanted) for one in part]
    if not sequences:
        return letters
    missing = sorted(set(sequences) - {letter.sequence for letter in letters})
    if missing:
        raise NotFound(
            f"stream {stream.name!r} has no dead letter of batch {missing[0]}. List them: "
            f"{command()} dead-letter list URL {stream.name}"
        )
    return [letter for letter in letters if letter.sequence in sequences]


async def _outcome(
    work: Callable[..., Any], stream: Stream, letter: DeadLetter
) -> Any | HeadwaterError:
    """What the work returns, or the error that it raises: other letters do not depend on it."""
    try:
        return await work(stream, letter)
    except HeadwaterError as error:
        return error


def describe_letters(letters: Sequence[DeadLetter]) -> Report:
    """A row for each letter."""
    report = Report(record=list(letters))
    report.table(
        "",
        [
            {
                "partition": letter.partition,
                "batch": letter.sequence,
                "first_lsn": letter.first_lsn,
                "last_lsn": letter.last_lsn,
                "records": letter.rows,
                "found_ms": letter.found_ms,
                "cause": letter.cause,
            }
            for letter in letters
        ],
    )
    if not letters:
        report.say("there are no dead letters")
    return report


def describe_letter(
    letter: DeadLetter, batch: ConsumedBatch | HeadwaterError, shown: int
) -> Report:
    """A letter in full, and the first records of its batch or why it cannot be read."""
    from headwater.cli.inspect_command import show_records

    fields = msgspec.to_builtins(letter)
    where = _where(letter)
    if isinstance(batch, HeadwaterError):
        report = Report(f"{where}: cannot be read", "✗", facts=fields)
        report.say(_cause(batch), "red")
        report.record = {**fields, "is_readable": False, "problem": _cause(batch)}
        return report
    words = f"{len(batch):,} records, {size_words(batch.descriptor.size_bytes)}"
    report = Report(f"{where}: can be read by now, {words}", "✓", facts=fields)
    show_records(report, batch.records, shown, len(batch), first_lsn=batch.first_lsn)
    rows = [row for table in report.tables for row in table.rows]
    report.record = {**fields, "is_readable": True, "first_records": json_value(rows)}
    return report


def describe_replay(
    stream: str,
    target: str,
    letters: Sequence[DeadLetter],
    outcomes: Sequence[ReplayedLetter | HeadwaterError],
) -> Report:
    """What was appended, what had been, and what could not be."""
    batches: list[dict[str, Any]] = []
    report = Report(record={"stream": stream, "into": target, "batches": batches})
    appended = 0
    for letter, outcome in zip(letters, outcomes, strict=True):
        record: dict[str, Any] = {"partition": letter.partition, "sequence": letter.sequence}
        batches.append(record)
        if isinstance(outcome, HeadwaterError):
            record["error"] = _cause(outcome)
            report.say(f"{_where(letter)}: {_cause(outcome)}", mark="✗")
            continue
        record |= {"records": outcome.records, "is_repeated": outcome.is_repeated}
        appended += outcome.records
        if outcome.is_repeated:
            words = f"appended to {target} by an earlier replay; nothing was appended now"
            report.say(f"{_where(letter)}: {words}", mark="–")
        else:
            words = f"{outcome.records:,} records appended to {target}"
            report.say(f"{_where(letter)}: {words}", mark="✓")
    if appended:
        report.say(
            f"the records have new offsets, after all others of their partitions of {target}; "
            "their former offsets stay lost",
            "yellow",
        )
    if not letters:
        report.say("there are no dead letters")
    return report


def describe_drop(
    stream: str, letters: Sequence[DeadLetter], outcomes: Sequence[HeadwaterError | None]
) -> Report:
    """What was deleted, and what could not be."""
    failed = [
        (letter, error)
        for letter, error in zip(letters, outcomes, strict=True)
        if error is not None
    ]
    dropped = len(letters) - len(failed)
    report = Report(f"dropped {_count(dropped)} of stream {stream}", "✗" if failed else "✓")
    for letter, error in failed:
        report.say(f"{_where(letter)}: {_cause(error)}", mark="✗")
    report.record = {
        "stream": stream,
        "dropped": [
            {"partition": letter.partition, "sequence": letter.sequence}
            for letter, error in zip(letters, outcomes, strict=True)
            if error is None
        ],
        "failed": [
            {"partition": letter.partition, "sequence": letter.sequence, "error": _cause(error)}
            for letter, error in failed
        ],
    }
    return report


def _where(letter: DeadLetter) -> str:
    lsns = f", LSNs {letter.first_lsn:,} to {letter.last_lsn:,}" if letter.rows else ""
    return f"partition {letter.partition}, batch {letter.sequence:,}{lsns}"


def _count(letters: int) -> str:
    return f"{letters:,} dead {'letter' if letters == 1 else 'letters'}"


def _cause(error: HeadwaterError) -> str:
    """The error in one line; of a batch that cannot be read, only what is wrong with it."""
    from headwater.buffer.consumer import UnreadableBatch

    if isinstance(error, UnreadableBatch):
        return f"still cannot be read. {error.cause}"
    return f"{type(error).__name__}: {error}"
