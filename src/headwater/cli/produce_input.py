"""What is produced from: lines of files or of standard input, and files of columns, piece by piece.

A piece is bounded, whatever the input: nothing here holds more than one of them, but for a line
that has not ended yet.
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
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headwater.cli.interrupt import Interrupt
from headwater.cli.standard_streams import check_input
from headwater.core.errors import Denied, LimitExceeded, Refused
from headwater.core.limits import MIB, RECORD_MAX_BYTES

STANDARD_INPUT: Final = "-"
BLOCK_BYTES: Final = 1 * MIB
PIECE_BYTES: Final = 4 * MIB
_PARQUET_ROWS: Final = 65_536
_MAGIC: Final = {b"PAR1": "--parquet", b"ARROW1": "--arrow"}


Source = str | io.BufferedReader
"""The name of a file, or standard input."""


class Piece(NamedTuple):
    """Some records on their way: values with or without keys, or columns."""

    values: list[bytes] | None
    keys: list[bytes] | None
    columns: pa.RecordBatch | pa.Table | None
    rows: int
    input_bytes: int
    """How much of the input it took."""


class Call(NamedTuple):
    """Records for one produce call."""

    values: list[bytes] | None
    keys: list[bytes] | None
    columns: pa.RecordBatch | pa.Table | None
    rows: int
    partition: int | None
    metadata: bytes | None
    end: int
    """How many records of the input are settled once this call and those before are accepted."""


class Decoded(NamedTuple):
    """The rows of some lines, up to the first that is wrong."""

    table: pa.Table
    error: Refused | None


class LineBlock(NamedTuple):
    """Whole lines, without their ends."""

    first_line: int
    lines: list[bytes]
    input_bytes: int


def input_bytes(files: list[str]) -> int | None:
    """How much there is to read; None where nobody knows."""
    sizes = [os.stat(name).st_size for name in files if os.path.isfile(name)]
    return sum(sizes) if files and len(sizes) == len(files) else None


def value_pieces(
    files: list[str], separator: bytes | None, interrupt: Interrupt
) -> Iterator[Piece]:
    """A record for each line; with a separator, what stands before it is the key."""
    for name in files or [STANDARD_INPUT]:
        for block in line_blocks(name, interrupt):
            if separator is None:
                yield Piece(block.lines, None, None, len(block.lines), block.input_bytes)
                continue
            parted = [line.partition(separator) for line in block.lines]
            whole = list(itertools.takewhile(lambda parts: parts[1], parted))
            if whole:
                keys, _, values = map(list, zip(*whole, strict=True))
                yield Piece(values, keys, None, len(values), block.input_bytes)
            if len(whole) < len(parted):
                raise Refused(
                    f"{_name(name)}, line {block.first_line + len(whole):,} has no "
                    f"{separator.decode()!r} to end its key: it was not sent, nor was what follows"
                )


def row_pieces(
    files: list[str], decode: Callable[[str, LineBlock], Decoded], interrupt: Interrupt
) -> Iterator[Piece]:
    """A row for each line of JSON; what stands before a line that is none is sent."""
    for name in files or [STANDARD_INPUT]:
        for block in line_blocks(name, interrupt):
            table, error = decode(_name(name), block)
            if table.num_rows:
                yield Piece(None, None, table, table.num_rows, block.input_bytes)
            if error is not None:
                raise error


def line_blocks(name: str, interrupt: Interrupt) -> Iterator[LineBlock]:
    """The lines of a file, or of standard input, as they come.

    The last line needs no end. A signal ends the input after the last whole line.
    """
    with _opened(name) as descriptor:
        first_line, rest = 1, b""
        while True:
            # Only here may a signal end it: what was read is never dropped on the way.
            with interrupt.waiting():
                select.select([descriptor], [], [])
            block = os.read(descriptor, BLOCK_BYTES)
            if not rest and first_line == 1:
                _refuse_columns(name, block)
            if not block:
                break
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > RECORD_MAX_BYTES:
                raise LimitExceeded(
                    f"{_name(name)}, line {first_line + len(lines):,} has more than "
                    f"{RECORD_MAX_BYTES:,} bytes (RECORD_MAX_BYTES), which a record may have"
                )
            if lines:
                yield LineBlock(first_line, lines, len(block))
                first_line += len(lines)
        if rest:
            yield LineBlock(first_line, [rest], 0)


def column_pieces(
    kind: str, files: list[str], schema: pa.Schema | None, interrupt: Interrupt
) -> Iterator[Piece]:
    """The rows of files with columns, in slices of bounded size."""
    for name in files or [STANDARD_INPUT]:
        read = 0
        try:
            for batch in _READERS[kind](_source(kind, name, interrupt), schema):
                for piece in _sliced(batch):
                    yield Piece(None, None, piece, piece.num_rows, piece.nbytes)
                    read += piece.num_rows
                    with interrupt.waiting():
                        pass
        except FileNotFoundError:
            raise Refused(f"there is no file {name}") from None
        except (pa.ArrowException, OSError) as error:
            raise Refused(f"{_name(name)}, after {read:,} rows: {error}") from error


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, -(-batch.nbytes // PIECE_BYTES))
    rows = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class _Waited(io.RawIOBase):
    """Standard input, of which a signal ends the waiting."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._descriptor = sys.stdin.fileno()
        self._interrupt = interrupt

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._interrupt.waiting():
            select.select([self._descriptor], [], [])
        return os.readv(self._descriptor, [buffer])


def _source(kind: str, name: str, interrupt: Interrupt) -> Source:
    """What to read a file of columns from."""
    if name != STANDARD_INPUT:
        return name
    check_input()
    piped: io.BufferedReader = io.BufferedReader(_Waited(interrupt), BLOCK_BYTES)
    if kind == "parquet" or (kind == "arrow" and piped.peek(6).startswith(b"ARROW1")):
        raise Refused(
            f"{_name(name)} cannot be read from its end, as such a file is: name the file, or send "
            "an Arrow stream (--arrow)"
        )
    return piped


def _parquet(name: Source, _: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(name) as file:
        yield from file.iter_batches(batch_size=_PARQUET_ROWS)


def _arrow(name: Source, _: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    if not isinstance(name, str):
        with pa.ipc.open_stream(name) as piped:
            yield from piped
        return
    with pa.OSFile(name) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source) as file:
                for number in range(file.num_record_batches):
                    yield file.get_batch(number)
        else:
            with pa.ipc.open_stream(source) as stream:
                yield from stream


def _csv(name: Source, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv

    types = {} if schema is None else {field.name: field.type for field in schema}
    with csv.open_csv(
        name,
        read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
        convert_options=csv.ConvertOptions(column_types=types),
    ) as reader:
        yield from reader


_READERS: Final[dict[str, Callable[[Source, Any], Iterator[pa.RecordBatch]]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
}


@contextlib.contextmanager
def _opened(name: str) -> Iterator[int]:
    if name == STANDARD_INPUT:
        check_input()
        yield sys.stdin.fileno()
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
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_columns(name: str, block: bytes) -> None:
    for magic, flag in _MAGIC.items():
        if block.startswith(magic):
            raise Refused(f"{_name(name)} has no lines but columns: say {flag}")


def _name(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name
