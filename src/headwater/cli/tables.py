"""Tables that fit: where the screen is too narrow for the columns, a paragraph for each row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PADDING: Final = 2


def print_table(
    console: Console,
    labels: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: Collection[str] = (),
) -> None:
    """Print rows below their labels; the columns named in `numbers` stand to the right."""
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, PADDING, 0, 0))
    for label in labels:
        table.add_column(label, justify="right" if label in numbers else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    heads = [Text(label) for label in labels]
    widths = [max(cell.cell_len for cell in column) for column in zip(heads, *cells, strict=True)]
    if sum(widths) + PADDING * (len(widths) - 1) <= console.width:
        console.print(table)
        return
    # Columns too narrow to read are worse than none.
    for row in cells:
        line = Text()
        for label, cell in zip(labels, row, strict=True):
            line.append(f"{label} ", style="dim").append_text(cell).append("  ")
        console.print(Padding(line, (0, 0, 0, 2)))
