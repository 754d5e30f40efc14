"""The input of `headwater produce`: lines, or files with columns, in pieces of bounded size.

At most one piece is in memory, except for a line that has not ended yet.

The columns of the stream decide what a row may have. A declared schema is closed: other columns are
refused. Inferred columns are open: new columns and wider types are added. Rows are checked before
they are sent, because only the code that reads a line can name it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from headwater.buffer.producer import BlockingProducer
from headwater.buffer.producer.rows import check_pandas_index
from headwater.buffer.records import KEY
from headwater.cli.report import Size
from headwater.cli.terminal import Interrupt, check_input
from headwater.core.errors import Denied, LimitExceeded, Refused
from headwater.core.limits import MIB, RECORD_MAX_BYTES

if TYPE_CHECKING:
    from headwater.cli.produce_csv import CsvColumns

STANDARD_INPUT: Final = "-"
BLOCK_BYTES: Final = 1 * MIB
PIECE_BYTES: Final = 4 * MIB
_PARQUET_ROWS: Final = 65_536
_MAGIC: Final = {b"PAR1": "--parquet", b"ARROW1": "--arrow"}
_CODECS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC_BYTES: Final = 6


class InputPiece(NamedTuple):
    """Some records on their way: values with or without keys, or columns."""

    values: list[bytes] | None
    keys: list[bytes] | None
    columns: pa.RecordBatch | pa.Table | None
    rows: int
    input_bytes: int
    """How much of the input it took."""


class InputCall(NamedTuple):
    """Records for one produce call."""

    records: InputPiece
    partition: int | None
    metadata: bytes | None
    end: int
    """How many records of the input are settled once this call and those before are accepted."""


class DecodedRows(NamedTuple):
    """The rows of some lines, up to the first that is wrong."""

    table: pa.Table
    error: Refused | None


class LineBlock(NamedTuple):
    """Whole lines, without the end of the last one."""

    first_line: int
    data: bytes
    input_bytes: int

    @property
    def lines(self) -> list[bytes]:
        """Each line, without its end."""
        return self.data.split(b"\n")


def input_bytes(files: list[str]) -> Size | None:
    """How much there is to read; None if that is unknown."""
    packed = (".gz", ".zst")
    plain = [name for name in files if os.path.isfile(name) and not name.endswith(packed)]
    sizes = [os.stat(name).st_size for name in plain]
    return Size(sum(sizes)) if files and len(sizes) == len(files) else None


def value_pieces(
    files: list[str], separator: bytes | None, interrupt: Interrupt
) -> Iterator[InputPiece]:
    """A record for each line; with a separator, the text before it is the key."""
    for name in files or [STANDARD_INPUT]:
        for block in line_blocks(name, interrupt):
            lines = block.lines
            if separator is None:
                yield InputPiece(lines, None, None, len(lines), block.input_bytes)
                continue
            parted = [line.partition(separator) for line in lines]
            whole = list(itertools.takewhile(lambda parts: parts[1], parted))
            if whole:
                keys, _, values = map(list, zip(*whole, strict=True))
                yield InputPiece(values, keys, None, len(values), block.input_bytes)
            if len(whole) < len(parted):
                raise Refused(
                    f"{_name(name)}, line {block.first_line + len(whole):,} has no "
                    f"{separator.decode()!r} to end its key: it was not sent, nor was what follows"
                )


def row_pieces(
    files: list[str], decode: Callable[[str, LineBlock], DecodedRows], interrupt: Interrupt
) -> Iterator[InputPiece]:
    """A row for each line of JSON; the rows before a line that is none are sent."""
    for name in files or [STANDARD_INPUT]:
        for block in line_blocks(name, interrupt):
            table, error = decode(_name(name), block)
            if table.num_rows:
                yield InputPiece(None, None, table, table.num_rows, block.input_bytes)
            if error is not None:
                raise error


def line_blocks(name: str, interrupt: Interrupt) -> Iterator[LineBlock]:
    """The lines of a file, or of standard input, as they come; decompressed if they have to be.

    The last line needs no end. A signal ends the input after the last whole line.
    """
    with _opened(name, interrupt) as source:
        first_line, rest = 1, b""
        codec = _codec(source)
        unpacked = None if codec is None else pa.CompressedInputStream(source, codec)
        while True:
            try:
                block = unpacked.read(BLOCK_BYTES) if unpacked else source.read1(BLOCK_BYTES)
            except (pa.ArrowException, OSError) as error:
                raise Refused(f"{_name(name)}, after line {first_line - 1:,}: {error}") from error
            if not rest and first_line == 1:
                _refuse_columns(name, block)
            if not block:
                break
            data, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield LineBlock(first_line, data, len(block))
                first_line += data.count(b"\n") + 1
            if len(rest) > RECORD_MAX_BYTES:
                raise LimitExceeded(
                    f"{_name(name)}, line {first_line:,} has more than {RECORD_MAX_BYTES:,} bytes "
                    "(RECORD_MAX_BYTES), which a record may have"
                )
        if rest:
            yield LineBlock(first_line, rest, 0)


def _codec(source: io.BufferedReader) -> str | None:
    """How a file is compressed, by its first bytes: names may say anything."""
    begins = source.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
    return next((codec for magic, codec in _CODECS.items() if begins.startswith(magic)), None)


def with_keys(pieces: Iterator[InputPiece], column: str) -> Iterator[InputPiece]:
    """The same rows, with the text of a column as their keys."""
    for piece in pieces:
        table = piece.columns
        assert table is not None
        names = table.schema.names
        if column not in names or KEY in names:
            why = (
                f"these rows have {', '.join(names)}" if column not in names else f"{KEY} is there"
            )
            raise Refused(f"--key-column {column}: {why}")
        found = table.column(column)
        try:
            keys = found if pa.types.is_binary(found.type) else found.cast(pa.string())
        except pa.ArrowException as error:
            raise Refused(f"--key-column {column} is {found.type}, not text: {error}") from error
        yield piece._replace(columns=table.append_column(KEY, keys.cast(pa.binary())))


def column_pieces(
    kind: str, files: list[str], csv: CsvColumns, interrupt: Interrupt
) -> Iterator[InputPiece]:
    """The rows of files with columns, in slices of bounded size."""
    for name in files or [STANDARD_INPUT]:
        read = 0
        try:
            with _opened(name, interrupt) as opened:
                if kind == "csv":
                    # Arrow reads ahead on a thread of its own, which no signal is to end half-way.
                    source = opened if name == STANDARD_INPUT else pa.OSFile(os.fsencode(name))
                    if codec := _codec(opened):
                        source = pa.CompressedInputStream(source, codec)
                    batches = csv.read(_name(name), source, BLOCK_BYTES)
                else:
                    batches = _column_batches(kind, name, opened)
                for batch in batches:
                    for piece in _sliced(batch):
                        yield InputPiece(None, None, piece, piece.num_rows, piece.nbytes)
                        read += piece.num_rows
                        with interrupt.waiting():
                            pass
        except (pa.ArrowException, OSError) as error:
            raise Refused(f"{_name(name)}, after {read:,} rows: {error}") from error


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, -(-batch.nbytes // PIECE_BYTES))
    rows = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class _InterruptibleInput(io.RawIOBase):
    """A descriptor, of which a signal ends the waiting."""

    def __init__(self, descriptor: int, interrupt: Interrupt) -> None:
        self._descriptor = descriptor
        self._interrupt = interrupt

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # Only here may a signal end it: what was read is never dropped on the way.
        with self._interrupt.waiting():
            select.select([self._descriptor], [], [])
        return os.readv(self._descriptor, [buffer])


def _column_batches(kind: str, name: str, opened: io.BufferedReader) -> Iterator[pa.RecordBatch]:
    """The batches of a Parquet file, an Arrow file or an Arrow stream."""
    is_arrow_file = opened.peek(_MAGIC_BYTES).startswith(b"ARROW1")
    is_piped = name == STANDARD_INPUT
    if is_piped and (kind == "parquet" or is_arrow_file):
        raise Refused(
            f"{_name(name)} is a Parquet or Arrow file, which is read from its end: name the file, "
            "or send an Arrow stream (--arrow)"
        )
    with contextlib.nullcontext(opened) if is_piped else pa.OSFile(os.fsencode(name)) as source:
        if kind == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(source) as file:
                check_pandas_index(file.schema_arrow)
                yield from file.iter_batches(batch_size=_PARQUET_ROWS)
        elif is_arrow_file:
            with pa.ipc.open_file(source) as file:
                check_pandas_index(file.schema)
                yield from map(file.get_batch, range(file.num_record_batches))
        else:
            with pa.ipc.open_stream(source) as stream:
                check_pandas_index(stream.schema)
                yield from stream


@contextlib.contextmanager
def _opened(name: str, interrupt: Interrupt) -> Iterator[io.BufferedReader]:
    if name == STANDARD_INPUT:
        check_input()
        yield io.BufferedReader(_InterruptibleInput(sys.stdin.fileno(), interrupt), BLOCK_BYTES)
        return
    try:
        descriptor = os.open(name, os.O_RDONLY)
    except FileNotFoundError:
        raise Refused(f"there is no file {name}") from None
    except PermissionError:
        raise Denied(f"{name} may not be read") from None
    if Path(name).is_dir():
        os.close(descriptor)
        raise Refused(f"{name} is a directory: name a file in it")
    try:
        yield io.BufferedReader(_InterruptibleInput(descriptor, interrupt), BLOCK_BYTES)
    finally:
        os.close(descriptor)


def _refuse_columns(name: str, block: bytes) -> None:
    for magic, flag in _MAGIC.items():
        if block.startswith(magic):
            raise Refused(f"{_name(name)} has columns instead of lines: use {flag}")


def _name(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name


class TargetColumns:
    """What the stream says of its columns, as the producer of the run knows it."""

    def __init__(self, producer: BlockingProducer, alter: str) -> None:
        """`alter` is the command that declares a schema."""
        self._producer = producer
        self.alter = alter
        stream = producer.stream
        self.is_declared = stream.schema is not None and not stream.config.is_inferred

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Name → type, of the columns that the stream has by now."""
        schema = self._producer.stream.schema
        return {} if schema is None else {field.name: field.type for field in schema}

    def left_out(self, columns: set[str], what: str) -> str:
        """What to say of columns that hold nothing and so have no type; nothing without any."""
        if not columns:
            return ""
        return (
            f"{', '.join(map(repr, sorted(columns)))}: {what} throughout, which has no type, so no "
            f"such column was sent. To have it there as null, declare a schema with it: "
            f"{self.alter}"
        )

    def check(self, records: pa.RecordBatch) -> None:
        """Refuse what the stream would; this records nothing, so rows can be tried."""
        self._producer.stream.taking_in(records.schema).fit(records)

    def record(self, records: pa.RecordBatch | pa.Table) -> None:
        """Let the stream record what these bring; `Refused` if others decided otherwise by now."""
        self._producer.fit(records)


def count_good(rows: int, are_good: Callable[[int, int], bool]) -> int:
    """How many of the first rows are good, where not all of them are.

    `are_good(start, end)` is asked of rows of which all before `start` are good.
    """
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        if are_good(low, middle):
            low = middle
        else:
            high = middle
    return low


def first_refused(rows: int, error_of: Callable[[int, int], Refused | None]) -> tuple[int, Refused]:
    """How many of the first rows are taken together, and what is wrong with the next one.

    `error_of(start, end)` says what is wrong with these rows, of which all together are refused.
    """
    good = count_good(rows, lambda _, end: error_of(0, end) is None)
    # By itself, if it is wrong by itself: then the error does not count other rows.
    return good, error_of(good, good + 1) or error_of(0, good + 1) or Refused("no row")
