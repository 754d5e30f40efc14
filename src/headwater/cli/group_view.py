"""How replication slots look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from headwater.cli.advice import runnable
from headwater.cli.tables import print_table
from headwater.core import runtime
from headwater.log.slots import Slot, SlotTable

Found = tuple[SlotTable | None, int] | str
"""The stored slots of a partition and its next LSN, or why they cannot be told."""

_LABELS = ("partition", "slot", "state", "durable", "applied", "behind", "last heard of")


def as_rows(found: Mapping[int, Found]) -> list[dict[str, Any]]:
    """A row for each slot, for machines."""
    rows = []
    for partition, told in found.items():
        table, next_lsn = (None, 0) if isinstance(told, str) else told
        if table is None:
            continue
        for slot in table.slots:
            rows.append(
                {
                    "partition": partition,
                    "slot": slot.name,
                    "state": _state(slot),
                    "restart_lsn": slot.restart_lsn,
                    "durable_lsn": _durable_lsn(slot),
                    "confirmed_lsn": slot.confirmed_lsn,
                    "behind_lsn": max(0, next_lsn - 1 - _durable_lsn(slot)),
                    "last_seen_ms": slot.last_seen_ms,
                    "leader_epoch": table.leader_epoch,
                }
            )
    return rows


def show_slots(console: Console, rows: list[dict[str, Any]], problems: Mapping[int, str]) -> None:
    """The same for people."""
    if rows:
        cells = [
            [
                str(row["partition"]),
                row["slot"],
                Text(row["state"], style="red" if row["state"].startswith("lost") else ""),
                f"{row['durable_lsn']:,}",
                f"{row['confirmed_lsn']:,}",
                f"{row['behind_lsn']:,}",
                runtime.utc_text(row["last_seen_ms"]),
            ]
            for row in rows
        ]
        print_table(console, _LABELS, cells, numbers=("durable", "applied", "behind"))
    for partition, problem in problems.items():
        line = Text.assemble(("✗ ", "red"), f"partition {partition}: {runnable(problem)}")
        console.print(line, soft_wrap=True)


def _durable_lsn(slot: Slot) -> int:
    """What its replica has on disk: a slot that is bootstrapped keeps the log for later."""
    return min(slot.restart_lsn, slot.confirmed_lsn) if slot.bootstrapping else slot.restart_lsn


def _state(slot: Slot) -> str:
    if slot.invalidation is not None:
        return f"lost: {slot.invalidation.cause.value}"
    return "bootstrapping" if slot.bootstrapping else "valid"
