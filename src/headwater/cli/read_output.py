"""Writes records: lines for people; JSON, CSV, Arrow or Parquet for programs."""

from __future__ import annotations

import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import KEY, VALUE
from headwater.cli.report import json_value, visible
from headwater.core.errors import Denied, Refused

_LSN: Final = "_lsn"
_PARTITION: Final = "_partition"
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"
_LSN_WIDTH: Final = 9
_JSON: Final = msgspec.json.Encoder(enc_hook=str)
BINARY: Final = ("arrow", "parquet")


class Output(ABC):
    """Where records go, and in which form."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Write these records, and flush them."""

    def close(self) -> None:
        """Write what ends the form, if anything does."""
        self._sink.flush()

    def abandon(self) -> None:
        """Leave it without its end: what an error cut short must not look as if it were all."""
        return


@contextlib.contextmanager
def open_output(
    format: str,
    path: Path | None,
    schema: pa.Schema,
    key_separator: str | None,
    null: str | None = None,
) -> Iterator[Output]:
    """An output in a form, to a file or to standard output."""
    if path is None and format in BINARY and sys.stdout.isatty():
        raise Refused(f"{format} is not for a terminal: name a file (-o FILE), or pipe it")
    with _opened(path) as sink:
        output: Output
        if format == "lines":
            on_screen = path is None and sys.stdout.isatty()
            output = LinesOutput(sink, schema, key_separator, on_screen=on_screen, null=null)
        elif format == "json":
            output = JsonOutput(sink)
        elif format == "csv":
            output = CsvOutput(sink, schema)
        elif format == "arrow":
            output = WriterOutput(sink, pa.ipc.new_stream(sink, schema))
        else:
            output = ParquetOutput(sink, schema)
        try:
            yield output
        except BaseException:
            output.abandon()
            raise
        output.close()


class LinesOutput(Output):
    """The value of each record on a line; on a screen, its LSN before it.

    What reads as another record, or as more than one, is refused: a value with a newline, a key
    with the separator, null without a text for it. A screen is for people, and shows them.
    """

    def __init__(
        self,
        sink: IO[bytes],
        schema: pa.Schema,
        key_separator: str | None,
        *,
        on_screen: bool,
        null: str | None = None,
    ) -> None:
        super().__init__(sink)
        self._null = null.encode() if null is not None else b"null" if on_screen else None
        self._on_screen = on_screen
        self._colour = on_screen and not os.environ.get("NO_COLOR")
        self._separator = None if key_separator is None else key_separator.encode()
        self._values = [name for name in schema.names if not name.startswith("_")]
        self._as_json = bool(self._values)
        self._has_digits = self._has_prefix = False
        """Whether bytes were shown as hexadecimal digits, and whether text begins as those do."""
        if VALUE in schema.names or not self._values:
            self._values = [VALUE] if VALUE in schema.names else schema.names
            self._as_json = len(self._values) > 1

    def write(self, batch: pa.RecordBatch) -> None:
        lines = self._lines(batch)
        if self._separator is not None:
            keys = self._with_text(batch, [_raw(key) for key in _column(batch, KEY)], "key")
            self._refuse(batch, keys, self._separator, "the separator in its key")
            lines = [key + self._separator + line for key, line in zip(keys, lines, strict=True)]
        if self._on_screen:
            lines = self._framed(batch, lines)
        data = b"".join(line + b"\n" for line in lines)
        if not self._on_screen and data.count(b"\n") != len(lines):
            self._refuse(batch, lines, b"\n", "a newline in it")
        self._sink.write(data)
        self._sink.flush()

    def _lines(self, batch: pa.RecordBatch) -> list[bytes]:
        if self._as_json:
            return _json_lines(batch.select(self._values)).split(b"\n")[:-1]
        column = batch.column(self._values[0])
        texts = _texts(column)
        self._check_digits(batch, column, texts)
        if texts is not None and not texts.null_count:
            raw = column if texts is not column else texts.cast(pa.binary())
            lines: list[bytes] = raw.to_pylist()
            self._refuse_null_text(batch, lines, "value")
            return lines
        return self._with_text(batch, [_raw(value) for value in python_values(column)], "value")

    def _check_digits(
        self, batch: pa.RecordBatch, column: pa.Array, texts: pa.Array | None
    ) -> None:
        """Refuse bytes that are no text beside text that looks like their digits."""
        if self._on_screen or not (texts is not None or pa.types.is_binary(column.type)):
            return
        if texts is None:
            values = [value for value in column.to_pylist() if value is not None]
            self._has_digits |= any(_raw(value) != value for value in values)
            self._has_prefix |= any(value.startswith(b"0x") for value in values)
        else:
            self._has_prefix |= bool(pc.any(pc.starts_with(texts, "0x")).as_py())
        if self._has_digits and self._has_prefix:
            raise Refused(
                f"{_place_of(batch, 0)} and those after it: bytes that are not text are shown as "
                "hexadecimal digits, and other values are text that begins with 0x: in lines, the "
                "two look the same. Use another --format, such as json"
            )

    def _with_text(
        self, batch: pa.RecordBatch, values: list[bytes | None], what: str
    ) -> list[bytes]:
        """With the text for null, where one was given."""
        if self._null is None and None in values:
            raise Refused(
                f"{_place_of(batch, values.index(None))} has null for its {what}, which a line "
                "cannot distinguish from an empty one: give it a text (--null TEXT, also ''), or "
                "use another --format"
            )
        self._refuse_null_text(batch, values, what)
        null = self._null or b""
        return [null if one is None else one for one in values]

    def _refuse_null_text(
        self, batch: pa.RecordBatch, values: Sequence[bytes | None], what: str
    ) -> None:
        """Refuse a value that reads as null. With --null '' empty values are meant to."""
        if self._null and not self._on_screen and self._null in values:
            raise Refused(
                f"{_place_of(batch, values.index(self._null))} has the text of --null for its "
                f"{what}: use another --null, or another --format"
            )

    def _refuse(self, batch: pa.RecordBatch, lines: list[bytes], part: bytes, what: str) -> None:
        for row, line in enumerate(lines):
            if part in line and not self._on_screen:
                raise Refused(
                    f"{_place_of(batch, row)} has {what}, and would be read as another one, or as "
                    "several: use another --format, such as json or csv"
                )

    def _framed(self, batch: pa.RecordBatch, lines: list[bytes]) -> list[bytes]:
        """With the place of each record, and nothing that would move the cursor."""
        dim, plain = (_DIM, _PLAIN) if self._colour else ("", "")
        places = zip(_column(batch, _PARTITION), _column(batch, _LSN), strict=True)
        framed = []
        for (partition, lsn), line in zip(places, lines, strict=True):
            place = "" if lsn is None else f"{lsn:,}".rjust(_LSN_WIDTH)
            if partition:
                place = f"{partition}:{place.strip()}".rjust(_LSN_WIDTH)
            text = visible(line.decode("utf-8", "backslashreplace"))
            framed.append(f"{dim}{place}{plain}  {text}".encode())
        return framed


class JsonOutput(Output):
    """One object a record."""

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.write(_json_lines(batch))
        self._sink.flush()


class WriterOutput(Output):
    """A form that Arrow writes: an IPC stream."""

    def __init__(self, sink: IO[bytes], writer: Any) -> None:
        super().__init__(sink)
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._sink.flush()

    def close(self) -> None:
        self._writer.close()


class CsvOutput(WriterOutput):
    """A line of names, then a line a record; what is nested is JSON within its cell."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        from pyarrow import csv

        self._schema = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        super().__init__(sink, csv.CSVWriter(sink, self._schema))

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_columns == 1 and batch.column(0).null_count:
            row = batch.column(0).is_null().to_pylist().index(True)
            raise Refused(
                f"{_place_of(batch, row)} has null in the only column, which would be an empty "
                "line, and readers of CSV skip those: add a column (--columns "
                f"{batch.schema.names[0]},{_LSN}), or use another --format"
            )
        columns = [
            column if column.type == field.type else _cells(column)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        super().write(pa.record_batch(columns, schema=self._schema))


class ParquetOutput(WriterOutput):
    """A Parquet file."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        super().__init__(sink, pq.ParquetWriter(sink, schema, compression="zstd"))

    def abandon(self) -> None:
        # Else it completes the file when it is thrown away, which is closed by then.
        self._writer.is_open = False


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = path.open("wb")
    except FileNotFoundError:
        raise Refused(f"there is no folder {path.parent}") from None
    except PermissionError:
        raise Denied(f"{path} may not be written") from None
    except IsADirectoryError:
        raise Refused(f"{path} is a directory") from None
    with file:
        yield file


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    return python_values(batch.column(name))


def _place_of(batch: pa.RecordBatch, row: int) -> str:
    """The record, by the numbers to look for it with."""
    partition, lsn = (_column(batch, name)[row] for name in (_PARTITION, _LSN))
    if lsn is None:
        return f"record {row:,} of a batch"
    return f"the record with LSN {lsn:,}" + (f" of partition {partition}" if partition else "")


def _raw(value: Any) -> bytes | None:
    """A value on a line: bytes that are text as they are, others as hexadecimal digits."""
    if value is None:
        return None
    if isinstance(value, bytes):
        try:
            value.decode("utf-8")
        except UnicodeDecodeError:
            return b"0x" + value.hex().encode()
        return value
    encoded = json_value(value)
    return encoded.encode() if isinstance(encoded, str) else msgspec.json.encode(encoded)


def _texts(column: pa.Array) -> pa.Array | None:
    """Bytes as text, all at once; None if some of them are no UTF-8, or it holds no bytes."""
    if pa.types.is_string(column.type):
        return column
    if not pa.types.is_binary(column.type):
        return None
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _json_lines(batch: pa.RecordBatch) -> bytes:
    columns = [_json_column(column) for column in batch.columns]
    names = batch.schema.names
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return _JSON.encode_lines(rows)


def _json_column(column: pa.Array) -> list[Any]:
    """Values that the encoder writes as `json_value` would; most of them need nothing done."""
    texts = _texts(column)
    if pa.types.is_timestamp(column.type):
        texts = time_texts(column)
    values = python_values(column if texts is None else texts)
    if texts is None and (pa.types.is_binary(column.type) or pa.types.is_nested(column.type)):
        return [json_value(value) for value in values]
    return values


def _csv_type(kind: pa.DataType) -> pa.DataType:
    is_text = pa.types.is_binary(kind) or pa.types.is_nested(kind)
    return pa.string() if is_text or pa.types.is_timestamp(kind) else kind


def _cells(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return time_texts(column, " ")
    texts = _texts(column)
    if texts is not None:
        return texts
    cells: list[str | None] = []
    for value in python_values(column):
        encoded = json_value(value)
        is_cell = encoded is None or isinstance(encoded, str)
        cells.append(encoded if is_cell else msgspec.json.encode(encoded).decode())
    return pa.array(cells, pa.string())


# Arrow has dates and times outside of the range of Python's. They are shown as Arrow's CSV writer
# shows them: with a long year, else `<value out of range: N>`, N in days or microseconds from 1970.
_NO_PYTHON = (OverflowError, ValueError)
"""What Python says of a date that it cannot hold."""


def python_values(column: pa.Array) -> list[Any]:
    """Each value of a column."""
    try:
        values: list[Any] = column.to_pylist()
    except _NO_PYTHON:
        return [_value(one) for one in column]
    return values


def time_texts(column: pa.Array, between: str = "T") -> pa.Array:
    """Timestamps as text, with this between date and time; those with a zone in UTC."""
    # Arrow knows which times without a zone have no text; of those with one it writes the years
    # that it can count to.
    plain = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
    zone = "" if column.type.tz is None else "Z"
    return pc.replace_substring_regex(
        plain.cast(pa.string()), r"^([-+]?[0-9]+-[0-9]+-[0-9]+) (.*)$", rf"\1{between}\2{zone}"
    )


def _value(scalar: pa.Scalar) -> Any:
    """One value, piece by piece where it has pieces."""
    try:
        return scalar.as_py()
    except _NO_PYTHON:
        pass
    if isinstance(scalar, pa.MapScalar):
        entries = scalar.values
        return list(zip(*(map(_value, entries.field(at)) for at in (0, 1)), strict=True))
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(scalar[name]) for name in scalar}
    if isinstance(scalar, pa.ListScalar):
        return [_value(one) for one in scalar.values]
    if pa.types.is_timestamp(scalar.type):
        return time_texts(pa.array([scalar]))[0].as_py()
    return scalar.cast(pa.string()).as_py()
