"""`headwater read` at work: batches in, records out, until the end, a limit or a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import typer

from headwater.cli.interrupt import Interrupt, Interrupted
from headwater.cli.read_output import Output

if TYPE_CHECKING:
    from headwater.buffer.consumer import LostRecords, Reader


@dataclass(slots=True)
class Shown:
    """What was shown."""

    records: int = 0
    interrupted: bool = False

    def conclude(self, stream: str, *, lost: list[LostRecords]) -> None:
        """Say on standard error what is missing from standard output."""
        for one in lost:
            gap = (
                f"stream {stream!r}, partition {one.partition}: LSNs {one.first_lsn:,} to "
                f"{one.last_lsn:,} cannot be read: {one.cause}"
            )
            typer.secho(gap, fg=typer.colors.YELLOW, err=True)
        if not self.records and not self.interrupted:
            typer.echo("there are no records here", err=True)


def read_all(reader: Reader, output: Output, *, limit: int | None, interrupt: Interrupt) -> Shown:
    """Write every batch, in order."""
    shown = Shown()
    while limit is None or shown.records < limit:
        batch: pa.RecordBatch | None
        try:
            # Whoever is interrupted here was given nothing: no batch is half shown.
            with interrupt.waiting():
                batch = next(reader, None)
        except Interrupted:
            shown.interrupted = True
            break
        if batch is None:
            break
        if limit is not None:
            batch = batch.slice(0, limit - shown.records)
        output.write(batch)
        shown.records += batch.num_rows
    return shown
