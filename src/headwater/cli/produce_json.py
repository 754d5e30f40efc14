"""Lines of JSON as rows of typed columns.

A stream that declares a schema says what the columns are. Without one, the first value that is not
null decides the type of its column for the whole run: a stream whose batches disagree about a
column cannot be read as one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.buffer.producer.dict_rows import table_of
from headwater.buffer.records import RESERVED
from headwater.cli.produce_input import Decoded, LineBlock
from headwater.core.errors import Refused

_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


class JsonRows:
    """Turns blocks of lines into tables of the same columns throughout."""

    def __init__(self, declared: pa.Schema | None) -> None:
        self._declared = declared
        self._types = {} if declared is None else {field.name: field.type for field in declared}

    def decode(self, name: str, block: LineBlock) -> Decoded:
        """The rows of a block; a line without anything is none."""
        rows, wrong = self._rows(name, block)
        texts = [column for column in self._types if _is_read_from_text(self._types[column])]
        for column in texts:
            self._cast_texts(name, block, rows, column)
        try:
            table = table_of(rows, pa.schema(list(self._types.items())))
        except Refused as error:
            raise Refused(f"{name}, {_lines(block)}: {error}{self._hint(error)}") from error
        return Decoded(self._pinned(table), wrong)

    def _rows(self, name: str, block: LineBlock) -> tuple[list[dict[str, Any]], Refused | None]:
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(block.lines, start=block.first_line):
            if not line.strip():
                continue
            try:
                rows.append(_DECODER.decode(line))
            except msgspec.DecodeError as error:
                return rows, Refused(
                    f"{name}, line {number:,} is no JSON object: {error}. It was not sent, nor was "
                    "what follows"
                )
        return rows, None

    def _pinned(self, table: pa.Table) -> pa.Table:
        """Without columns that are null throughout: they have no type yet."""
        empty = [field.name for field in table.schema if pa.types.is_null(field.type)]
        table = table.drop_columns(empty) if empty else table
        for field in table.schema:
            if field.name not in RESERVED:
                self._types.setdefault(field.name, field.type)
        return table

    def _cast_texts(
        self, name: str, block: LineBlock, rows: list[dict[str, Any]], column: str
    ) -> None:
        """JSON has no times and no decimals: they are written as text."""
        kind = self._types[column]
        given = [row for row in rows if isinstance(row.get(column), str)]
        if not given:
            return
        try:
            cast = pa.array([row[column] for row in given]).cast(kind).to_pylist()
        except pa.ArrowException as error:
            raise Refused(f"{name}, {_lines(block)}, column {column!r}: {error}") from error
        for row, value in zip(given, cast, strict=True):
            row[column] = value

    def _hint(self, error: Refused) -> str:
        if self._declared is not None:
            return ""
        return (
            ". Earlier lines decided the type; declare a schema if it is another: headwater stream "
            "alter URL NAME --schema FILE"
        )


def _is_read_from_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind))


def _lines(block: LineBlock) -> str:
    return f"lines {block.first_line:,} to {block.first_line + len(block.lines) - 1:,}"
