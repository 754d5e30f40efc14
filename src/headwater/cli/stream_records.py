"""`headwater stream copy`, `stream truncate`, `gc`: copy records, give up old ones, delete them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from headwater.cli.advice import command
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    STREAM,
    URL,
    YES,
    on_stream,
    open_with_options,
    read_bound,
    wanted_partitions,
)
from headwater.cli.render import Progress, conclude_change, echo
from headwater.cli.report import Note, Report, ReportTable, size_words
from headwater.cli.terminal import AT_ONCE, confirm, gather_bounded, run_loop
from headwater.core import limits
from headwater.core.errors import HeadwaterError, Refused, RolledBack

if TYPE_CHECKING:
    from headwater.buffer.copying import CopyResult
    from headwater.buffer.queue.contract import Collected
    from headwater.buffer.stream import Stream
    from headwater.buffer.stream.config import StreamConfig
    from headwater.buffer.truncation import Truncated, TruncationPlan


def copy(
    url: str = URL,
    name: str = typer.Argument(metavar="STREAM", help="The stream to copy."),
    new_url: str = typer.Argument(
        metavar="NEW_URL", help="The store to copy to; may be the same as URL."
    ),
    new_name: str = typer.Argument(metavar="NEW_STREAM", help="The stream to create there."),
    resume: bool = typer.Option(
        False, "--resume", help="Continue an interrupted copy, or add newer records."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    new_option: list[str] = typer.Option(
        [], "--new-option", metavar="NAME=VALUE", help="An option of NEW_URL; default: --option."
    ),
) -> None:
    """Copy the records of a stream into a new one, in the same partitions and order.

    Copies all retained records up to the end of the stream at the start of the command. Exit
    status: 0, or 2 if not everything was copied; --resume copies the rest, and nothing twice.
    """
    from headwater.buffer.copying import copy_stream
    from headwater.buffer.stream import open_stream

    copied = 0

    def advance(records: int, total: int) -> None:
        nonlocal copied
        copied = records
        progress.show(work, records, total, "records")

    async def run() -> list[CopyResult]:
        async with AsyncExitStack() as stack:
            target_store = await stack.enter_async_context(
                open_with_options(new_url, new_option or option)
            )
            if target_store.stats.scheme == "memory":
                raise Refused("a copy in memory:// is lost when this command ends")
            source_store = await stack.enter_async_context(open_with_options(url, option))
            source = await open_stream(source_store, name)
            return await copy_stream(
                source, target_store, new_name, resume=resume, progress=advance
            )

    work = f"copying {name} into {new_name}"
    try:
        with Progress(work) as progress:
            done = run_loop(run())
    except BaseException:
        if copied:
            echo("interrupted: the same command with --resume continues", is_error=True)
        raise
    conclude_change(describe_copy(name, new_name, done), as_json=as_json)


def describe_copy(name: str, new_name: str, done: list[CopyResult]) -> Report:
    """How many records were copied, now and before."""
    records, before = sum(one.records for one in done), sum(one.before for one in done)
    words = f"copied {records:,} records of stream {name} into {new_name}"
    if before:
        words += f", after {before:,} of earlier runs"
    return Report(words, "✓", record={"stream": name, "copy": new_name, "partitions": done})


Outcomes = dict[int, "Truncated | HeadwaterError"]


def truncate(
    url: str = URL,
    name: str = typer.Argument(metavar="STREAM", help="The stream's name."),
    before: str = typer.Option(
        metavar="OFFSET|TIME|P=OFFSET,…",
        help="The first record to keep: an LSN, a time or latest; or one LSN per partition.",
    ),
    partition: int | None = PARTITION,
    force: bool = typer.Option(
        False, "--force", help="Also what the stream's required group has not processed."
    ),
    yes: bool = YES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Delete the records before an offset; the log then begins at that offset.

    If the offset is within a batch, the whole batch stays. The command can be repeated. Exit
    status: 0, or 1 if a partition could not be truncated or objects could not be deleted.
    """
    from headwater.buffer.truncation import plan_truncation, truncate_all

    bounds = _bounds(before, partition)
    wanted = None if partition is None else [partition]

    async def run(stream: Stream) -> Outcomes:
        work = f"truncating {name}"
        with Progress(work) as progress:
            advance = partial(progress.step, work, len(to_do), "partitions")
            return await truncate_all(stream, to_do, advance, force=force)

    plans = on_stream(
        url, option, name, lambda stream: plan_truncation(stream, bounds, wanted), writing=True
    )
    to_do = [one for one in plans if not one.is_done]
    _check_forced(name, to_do, force=force)
    if to_do and not yes:
        _ask(name, to_do)
    outcomes = on_stream(url, option, name, run, writing=True) if to_do else {}
    bad = any(isinstance(one, HeadwaterError) or one.failed for one in outcomes.values())
    conclude_change(describe_truncation(name, plans, outcomes), good=not bad, as_json=as_json)


def _bounds(text: str, partition: int | None) -> Any:
    """What --before says: one position, or one for each partition that it names."""
    if "=" not in text:
        return read_bound(text)
    if partition is not None:
        raise typer.BadParameter("it names partitions: leave --partition out", param_hint="before")
    bounds: dict[int, int | str | None] = {}
    for pair in text.split(","):
        number, _, position = pair.partition("=")
        if not number.isdecimal() or not position:
            raise typer.BadParameter(
                f"{pair!r} is not PARTITION=OFFSET, as in 0=1000,1=2500", param_hint="before"
            )
        if int(number) in bounds:
            raise typer.BadParameter(f"partition {number} is given twice", param_hint="before")
        bounds[int(number)] = read_bound(position)
    return bounds


def _check_forced(name: str, plans: list[TruncationPlan], *, force: bool) -> None:
    """Refuse, before anything is truncated, what only --force does."""
    lost = sum(one.unprocessed for one in plans)
    if lost and not force:
        raise Refused(
            f"stream {name!r}: its required group {plans[0].required_group} has not processed "
            f"{lost:,} of these records. Let it catch up, or pass --force: then it loses them"
        )


def _ask(name: str, plans: list[TruncationPlan]) -> None:
    records = sum(one.records for one in plans)
    records_words = f"{records:,} records in {len(plans):,} partitions of stream {name}"
    for one in plans:
        if one.unprocessed:
            records_words += (
                f"; partition {one.partition}: the required group {one.required_group} has not "
                f"processed {one.unprocessed:,} of them, and would lose them"
            )
    confirm(
        f"Permanently delete {records_words}?",
        unasked=f"there is no terminal to confirm the deletion of {records_words}: use --yes",
    )


def describe_truncation(name: str, plans: list[TruncationPlan], outcomes: Outcomes) -> Report:
    """Where the log of each partition begins now, or why it could not be truncated."""
    partitions: list[dict[str, Any]] = []
    report = Report(record={"stream": name, "partitions": partitions})
    for plan in plans:
        outcome = outcomes.get(plan.partition)
        record: dict[str, Any] = {"partition": plan.partition, "before_lsn": plan.before_lsn}
        partitions.append(record)
        where = f"partition {plan.partition}: "
        if isinstance(outcome, HeadwaterError):
            record["error"] = why = f"{type(outcome).__name__}: {outcome}"
            report.say(
                f"{where}{why} (run {command()} stream truncate again to continue)", mark="✗"
            )
            continue
        start_lsn, records, failed = plan.floor_lsn, 0, 0
        if outcome is not None:
            start_lsn, records, failed = outcome.start_lsn, outcome.records, outcome.failed
        record |= {"start_lsn": start_lsn, "records": records, "failed": failed, "left": plan.left}
        words = f"{where}nothing to delete, the log begins at LSN {start_lsn:,}"
        if outcome is not None:
            words = f"{where}the log begins at LSN {start_lsn:,}, {records:,} records were deleted"
        if failed:
            words += f"; {failed:,} objects could not be deleted; gc --full deletes them"
        if plan.left:
            first, last = plan.before_lsn - plan.left, plan.before_lsn - 1
            words += f"; LSNs {first:,} to {last:,} stay, in one batch with {plan.before_lsn:,}"
        report.say(words, mark="–" if outcome is None else "✓")
    return report


PASSES_MAX: Final = 10_000


def gc(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    full: bool = typer.Option(
        False,
        "--full",
        help="Also delete what crashes left behind; takes up to 90 s for 16 partitions.",
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Delete acknowledged batches past their retention, and uploads that were never appended.

    Prints what it deleted, what stays, and why. Consumers do the same while they run. Exit status:
    0, or 1 if something could not be deleted; the next run tries again.
    """
    from headwater.buffer.transaction.holds import holds_register, read_holds

    async def run(opened: Stream) -> Report:
        wanted = wanted_partitions(opened, partition)
        waits = full and opened.config.format == "native"
        if waits and not progress.is_shown:
            turns = -(-len(wanted) // AT_ONCE)
            wait_s = f"{turns * limits.FLOOR_SETTLE_S:,.0f} s"
            words = f"waiting up to {wait_s} before chunks of the queue may be deleted"
            progress.say(Note(words))
        wait = f"; each may wait for {limits.FLOOR_SETTLE_S:.0f} s" if waits else ""
        advance = partial(progress.step, work, len(wanted), f"partitions{wait}")
        collected = await collect_all(opened, wanted, full=full, advance=advance)
        held = len((await read_holds(holds_register(opened))).holds)
        return describe_collected(opened, collected, open_transactions=held)

    work = f"collecting garbage of {stream}"
    with Progress(work) as progress:
        report = on_stream(url, option, stream, run, writing=True)
    conclude_change(report, good=all(part.mark == "✓" for part in report.parts), as_json=as_json)


def describe_collected(
    stream: Stream, collected: dict[int, Collected], *, open_transactions: int
) -> Report:
    """What was deleted and why, what stays and why, for each partition."""
    import msgspec

    report = Report()
    for partition, one in collected.items():
        rows = _collected_rows(one, stream.config)
        table = ReportTable("", rows, has_labels=False)
        part = Report(f"partition {partition} of {stream.name}", "✓", tables=[table])
        if one.failed:
            part.mark = "✗"
            failed = f"  {one.failed:,} objects could not be deleted; the next run tries again"
            part.say(failed, "yellow")
        if one.clock_doubt:
            part.say(
                f"  {one.clock_doubt}: only what every group has processed was deleted by its age",
                "yellow",
            )
        report.parts.append(part)
    if open_transactions:
        report.say(
            f"{open_transactions:,} open transactions: their uploads stay until they commit "
            "or abort, or are not renewed for their sinkTimeout",
            "dim",
        )
    report.record = {
        "stream": stream.name,
        "open_transactions": open_transactions,
        "partitions": [
            {"partition": partition, **msgspec.to_builtins(one)}
            for partition, one in collected.items()
        ],
    }
    return report


def _collected_rows(one: Collected, config: StreamConfig) -> list[dict[str, Any]]:
    from headwater.cli.stream_report import retention_words

    retention = retention_words(config)
    why_left = (
        f"batches: past their {retention}, but named by other software, which may use them "
        "elsewhere. Nothing deletes them later: do it by hand"
    )
    why_kept = f"batches: kept for {retention}"
    if config.required_group is not None:
        why_kept += f", and until group {config.required_group} has processed them"
    expired, orphaned = size_words(one.bytes_expired), size_words(one.bytes_orphaned)
    rows = [
        ("deleted", one.batches_expired, f"batches, {expired}: past their {retention}"),
        ("", one.batches_orphaned, f"batches, {orphaned}: uploaded and never appended"),
        ("", one.chunks_expired, "chunks of the queue that had only such batches"),
        ("forgotten", one.producers_forgotten, "producers: closed for good, or silent for 7 days"),
        *([("left", one.batches_left, why_left)] if one.batches_left else []),
        ("kept", one.kept_retained, why_kept),
        *([("", one.kept_pending, "batches: not acknowledged")] if one.kept_pending else []),
        (
            "oldest now",
            one.floor_sequence,
            f"is the first batch that can be read, with LSN {one.floor_lsn:,}",
        ),
    ]
    return [
        {"what": Note(f"  {name}", "dim"), "count": count, "why": words}
        for name, count, words in rows
    ]


async def collect_all(
    stream: Stream, partitions: Sequence[int], *, full: bool, advance: Callable[[], None]
) -> dict[int, Collected]:
    """Collect each of these, several at once."""

    async def collect(partition: int) -> Collected:
        collected = await collect_partition(stream, partition, full=full)
        advance()
        return collected

    return dict(zip(partitions, await gather_bounded(collect, partitions), strict=True))


async def collect_partition(stream: Stream, partition: int, *, full: bool) -> Collected:
    """Bounded passes until one finds nothing more; what they did together."""
    from headwater.buffer.collection import GarbageCollection

    collection = GarbageCollection(stream, partition)
    last = total = await collection.run_pass(full=full)
    for _ in range(PASSES_MAX):
        if last.failed or not _found_much(last):
            break
        last = await collection.run_pass()
        total = last.plus(total)
    return await _kept(stream, partition, total)


async def _kept(stream: Stream, partition: int, total: Collected) -> Collected:
    """With what is kept now: a consumer went on while the passes counted."""
    import msgspec

    from headwater.cli.stream_report import acknowledgements_count, disorder

    state = await stream.queue_reader(partition).state()
    wrong = disorder(state)
    if wrong is not None:
        raise RolledBack(f"partition {partition} of {stream.name}: {wrong}")
    pending = state.pending if acknowledgements_count(stream.config) else 0
    return msgspec.structs.replace(
        total,
        kept_pending=pending,
        kept_retained=state.next_sequence - state.floor_sequence - pending,
        floor_sequence=state.floor_sequence,
        floor_lsn=state.floor_lsn,
    )


def _found_much(report: Collected) -> bool:
    """Whether another pass may find more: a pass itself leaves an empty chunk for the next."""
    batches = report.batches_expired + report.batches_orphaned + report.batches_left
    return batches > 0 or report.is_cut_short
