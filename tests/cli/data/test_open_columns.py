"""`headwater produce` of JSON and CSV into streams that have columns, declared or inferred."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater.buffer.producer import BlockingProducer
from headwater.cli import produce_input
from headwater.cli.produce_csv import CsvColumns
from headwater.cli.produce_input import LineBlock, TargetColumns
from headwater.cli.produce_json import JsonRows
from headwater.core.errors import Refused
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make, lines


def record(url: str, **columns: pa.Array) -> None:
    """Let the stream infer its columns."""
    with BlockingProducer(url, "events") as producer:
        producer.produce_arrow(pa.table(columns))


def types(url: str) -> dict[str, str]:
    """Name → type, of the columns that are not reserved."""
    with headwater.blocking.read(url, "events") as reader:
        found = reader.to_table().schema
    return {field.name: str(field.type) for field in found if not field.name.startswith("_")}


def numbers() -> dict[str, pa.Array]:
    return {"i": pa.array([1], pa.int32()), "f": pa.array([0.5], pa.float32())}


def as_text(kind: str, rows: list[tuple[str, str]]) -> str:
    if kind == "--csv":
        return "i,f\n" + "".join(f"{i},{f}\n" for i, f in rows)
    return "".join(f'{{"i":{i},"f":{f}}}\n' for i, f in rows)


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("kind", ["--json", "--csv"])
def test_known_columns_keep_their_types_while_these_hold_the_values(
    invoke: Invoke, url: str, file: File, kind: str, blank: str
) -> None:
    record(url, **numbers())
    text = as_text(kind, [("2", "1.5"), ("-3", "0.25")])
    if kind == "--json":
        text = text.replace("}\n", f"}}{blank}\n")  # with a blank, line by line
    done = invoke("produce", url, "events", file(text), kind)
    assert done.exit_code == 0, done.stderr
    assert types(url) == {"i": "int32", "f": "float"}
    assert [tuple(row.values()) for row in lines(url, columns=["i", "f"])] == [
        (1, 0.5),
        (2, 1.5),
        (-3, 0.25),
    ]


@pytest.mark.parametrize("before", [0, 600])
@pytest.mark.parametrize(
    ("wide", "then"),
    [
        (("3000000000", "0.5"), {"i": "int64", "f": "float"}),
        (("4", "0.1"), {"i": "int32", "f": "double"}),
        (("3000000000", "0.1"), {"i": "int64", "f": "double"}),
    ],
)
@pytest.mark.parametrize("kind", ["--json", "--csv"])
def test_inferred_numbers_become_wider_where_a_value_needs_it(
    invoke: Invoke,
    url: str,
    file: File,
    kind: str,
    wide: tuple[str, str],
    then: dict[str, str],
    before: int,
) -> None:
    record(url, **numbers())
    rows = [("7", "0.5")] * before + [wide, ("4", "0.25")]
    done = invoke("produce", url, "events", file(as_text(kind, rows)), kind)
    assert done.exit_code == 0, done.stderr
    assert types(url) == then
    found = [tuple(row.values()) for row in lines(url, columns=["i", "f"])]
    assert found[1:] == [(int(i), float(f)) for i, f in rows]


@pytest.mark.parametrize("kind", ["--json", "--csv"])
def test_a_column_that_the_stream_does_not_have_is_recorded(
    invoke: Invoke, url: str, file: File, kind: str
) -> None:
    record(url, id=pa.array([1]))
    text = "id,zip\n2,007\n3,12\n" if kind == "--csv" else '{"id":2,"zip":"007"}\n{"id":3}\n'
    done = invoke("produce", url, "events", file(text), kind)
    assert done.exit_code == 0, done.stderr
    assert types(url) == {"id": "int64", "zip": "string"}
    assert [row["zip"] for row in lines(url, columns=["zip"])][:2] == [None, "007"]


def test_text_that_looks_like_a_number_stays_text_and_is_no_inferred_number(
    invoke: Invoke, url: str, file: File
) -> None:
    for text in ("zip,n\n007,1\n", "zip,n\n12,2\n"):
        assert invoke("produce", url, "events", file(text), "--csv").exit_code == 0
    assert types(url) == {"zip": "string", "n": "int64"}
    done = invoke("produce", url, "events", file("zip,n\n1,3\n2,007\n"), "--csv")
    assert done.exit_code == 2
    assert "row 2, column 'n': '007' is no int64" in done.stderr
    assert [tuple(row.values()) for row in lines(url, columns=["zip", "n"])] == [
        ("007", 1),
        ("12", 2),
        ("1", 3),
    ]


@pytest.mark.parametrize(
    ("text", "row", "says", "sent"),
    [
        ("id,extra\n1,2\n", 1, "extra  int64 is given, and not declared", []),
        ("id,t\n1,a\n2,b\n,c\n4,d\n", 3, "null there; only a delete may", [1, 2]),
        ("t\na\n", 1, "id  int64 not null is declared, and is missing", []),
    ],
)
def test_csv_that_a_declared_stream_does_not_take_is_named_by_its_row(
    invoke: Invoke, url: str, make: Make, file: File, text: str, row: int, says: str, sent: Any
) -> None:
    make("strict", schema={"id": "int64 not null", "t": "string", "l": "list<int64>"})
    done = invoke("produce", url, "strict", file(text), "--csv")
    assert done.exit_code == 2
    assert f"row {row}: " in done.stderr
    assert says in done.stderr
    assert [one["id"] for one in lines(url, "strict", columns=["id"])] == sent


def test_a_name_that_stands_twice_in_csv_is_refused(invoke: Invoke, url: str, file: File) -> None:
    done = invoke("produce", url, "events", file("a,b,a\n1,2,3\n"), "--csv")
    assert done.exit_code == 2
    assert "names the column 'a' twice" in done.stderr
    assert lines(url) == []


def test_a_column_of_an_empty_csv_column_may_have_any_type(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("nested", schema={"id": "int64", "l": "list<int64>"})
    done = invoke("produce", url, "nested", file("id,l\n1,\n2,\n"), "--csv")
    assert done.exit_code == 0, done.stderr
    assert [row["l"] for row in lines(url, "nested", columns=["l"])] == [None, None]


@pytest.mark.parametrize("kind", ["--json", "--csv"])
def test_a_stream_of_opaque_values_refuses_rows_with_their_place(
    invoke: Invoke, url: str, file: File, kind: str
) -> None:
    assert invoke("produce", url, "events", file("opaque\n")).exit_code == 0
    text = "a\n1\n" if kind == "--csv" else '{"a":1}\n'
    done = invoke("produce", url, "events", file(text), kind)
    assert done.exit_code == 2
    assert "carries opaque values" in done.stderr
    assert "produce them as lines, without --json or --csv" in done.stderr
    assert (", row 1: " if kind == "--csv" else ", line 1: ") in done.stderr


def test_lines_of_nulls_before_the_first_value_are_rows_of_its_column(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file('{"a":null}\n' * 300 + '{"a":1}\n'), "--json")
    assert done.exit_code == 0, done.stderr
    assert [row["a"] for row in lines(url, columns=["a"])] == [None] * 300 + [1]


def test_a_column_that_another_producer_decides_meanwhile_is_named_by_its_place(url: str) -> None:
    with BlockingProducer(url, "events") as producer:
        stream = TargetColumns(producer, "alter")
        rows, cells = JsonRows(stream), CsvColumns(stream, delimiter=",")
        record(url, id=pa.array([1]), b=pa.array(["text"]))
        table, error = rows.decode("input", LineBlock(1, b'{"id":1}\n{"id":2,"b":5}', 0))
        assert table.column("id").to_pylist() == [1]
        assert "input, line 2: column 'b' is string, and int64 is given" in str(error)
        # Text is what every cell is: the type that was decided holds this one as well.
        read = list(cells.read("input", pa.BufferReader(b"id,b\n1,5\n"), 1024))
        assert [one.to_pylist() for one in read] == [[{"id": 1, "b": "5"}]]


def test_a_csv_column_that_was_decided_meanwhile_is_named_by_its_row(url: str) -> None:
    with BlockingProducer(url, "events") as producer:
        cells = CsvColumns(TargetColumns(producer, "alter"), delimiter=",")
        record(url, b=pa.array([1]))
        read = cells.read("input", pa.BufferReader(b"b\n1\n1.5\n"), 1024)
        assert next(read).to_pylist() == [{"b": 1}]
        with pytest.raises(Refused, match=r"row 2, column 'b': '1\.5' is no int64"):
            next(read)


def test_types_that_grow_within_a_file_hold_for_all_of_it(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 1 << 20)
    text = '{"s":{"x":1}}\n' * 300 + '{"s":{"y":2}}\n'
    done = invoke("produce", url, "events", file(text), "--json")
    assert done.exit_code == 0, done.stderr
    found = [row["s"] for row in lines(url, columns=["s"])]
    assert found == [{"x": 1, "y": None}] * 300 + [{"x": None, "y": 2}]


@pytest.mark.parametrize(
    ("text", "kind"),
    [('{"a":null,"b":1}\n{"a":null,"b":"x"}\n', "json"), ("a,b\n,1\n,1,2\n", "csv")],
)
def test_columns_without_a_value_are_named_where_something_was_sent(
    invoke: Invoke, url: str, file: File, text: str, kind: str
) -> None:
    done = invoke("produce", url, "events", file(text), f"--{kind}")
    assert (done.exit_code, "no such column was sent" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "options"),
    [('{"a":null,"b":1}\n', "--json --key-column=c"), ("a,b\n,1\n", "--csv --key-column=c")],
)
def test_columns_without_a_value_are_not_named_where_nothing_was_sent(
    invoke: Invoke, url: str, file: File, text: str, options: str
) -> None:
    done = invoke("produce", url, "events", file(text), *options.split())
    assert (done.exit_code, "no such column was sent" in done.stderr) == (2, False)


def test_the_index_of_pandas_that_no_column_holds_is_refused_with_what_a_command_can_do(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    pandas: Any = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2]}, index=pandas.RangeIndex(10, 30, 10, name="n"))
    frame.to_parquet(tmp_path / "in.parquet")
    done = invoke("produce", url, "events", str(tmp_path / "in.parquet"), "--parquet")
    assert done.exit_code == 2
    assert "write the file again from df.reset_index()" in done.stderr
