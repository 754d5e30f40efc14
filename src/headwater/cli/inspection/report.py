"""What was found in an object: facts, tables and problems, the same for people and machines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.cli.advice import advice_for
from headwater.cli.byte_text import json_value
from headwater.core.errors import HeadwaterError

_OFFSET: Final = re.compile(r"\boffset ([0-9][0-9,]*)|\(byte ([0-9]+)\)")


def offset_in(message: str) -> int | None:
    """The offset that a message names."""
    found = _OFFSET.search(message)
    digits = found and (found[1] or found[2])
    return int(digits.replace(",", "")) if digits else None


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    check: str
    """Which check failed, in a word or two."""
    message: str
    offset: int | None = None
    """Where in the object, if that is known."""
    advice: str | None = None
    error: str = ""
    """The kind of error that a reader raises."""

    @classmethod
    def of(
        cls,
        error: HeadwaterError,
        check: str,
        *,
        offset: int | None = None,
        detail: str = "",
        advice: str | None = None,
    ) -> Problem:
        """From what a reader raised; the offset is taken from its message unless it is given."""
        message = str(error)
        if offset is None and " of the block" not in message:
            offset = offset_in(message)
        return cls(
            check=check,
            message=f"{message.removesuffix('.')}. {detail}" if detail else message,
            offset=offset,
            advice=advice or advice_for(error),
            error=type(error).__name__,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """A table. Names end in their unit, which says how values are shown."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    total: int | None = None
    """How many there are, where not all are shown."""


@dataclass(slots=True)
class Report:
    """What one object, or one partition, holds."""

    kind: str
    size_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[Rows] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        found: dict[str, Any] = {"kind": self.kind, "good": self.is_good}
        if self.size_bytes is not None:
            found["size_bytes"] = self.size_bytes
        found |= {name: json_value(value) for name, value in self.facts.items()}
        for table in self.tables:
            found[table.name] = [
                {
                    column: json_value(value)
                    for column, value in zip(table.columns, row, strict=True)
                }
                for row in table.rows
            ]
            if table.total is not None:
                found[f"{table.name}_total"] = table.total
        found["notes"] = self.notes
        found["problems"] = [
            {
                "check": problem.check,
                "error": problem.error,
                "message": problem.message,
                "offset": problem.offset,
                "advice": problem.advice,
            }
            for problem in self.problems
        ]
        return found
