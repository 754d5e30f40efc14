"""How measurements are shown: tables, units, and the machine they were made on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def seconds(value: float) -> str:
    """A time in a unit that fits."""
    return f"{value * 1e6:,.0f} µs" if value < 1e-3 else f"{value * 1e3:,.2f} ms"


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}")
    for row in (head, ["-" * width for width in widths], *rows):
        first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first, *(cell.strip().rjust(w) for cell, w in zip(rest, widths[1:]))]))  # noqa: B905  the first column is not among the rest


def machine() -> str:
    """What this runs on, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = named[0] if named else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores, {pages / 2**30:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {sys.version.split()[0]}, load {load}"
    )
