"""`headwater produce` of JSON lines and of files of columns, which are typed rows."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from headwater.cli import produce_input
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make, lines

SCHEMA = {"id": "int64 not null", "at": "timestamp[us, UTC]", "amount": "decimal(10, 2)"}


def test_a_byte_order_mark_before_the_first_line_of_json_is_none_of_it(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", "--json", file('\ufeff{"a": 1}\n{"a": 2}\n'))
    assert done.exit_code == 0, done.stderr
    assert invoke("read", url, "events").stdout == '{"a":1}\n{"a":2}\n'
    again = invoke("produce", url, "events", "--json", file('{"a": 1}\n\ufeff{"a": 2}\n'))
    assert (again.exit_code, "line 2 is not a JSON object" in again.stderr) == (2, True)


def test_json_lines_are_typed_rows(invoke: Invoke, url: str, file: File) -> None:
    text = '{"id":1,"name":"a"}\n\n{"id":2,"name":null,"tags":["x"],"_key":"k"}\n'
    assert invoke("produce", url, "events", file(text), "--json").exit_code == 0
    rows = lines(url, columns=["id", "name", "tags", "_key"])
    assert rows == [
        {"id": 1, "name": "a", "tags": None, "_key": None},
        {"id": 2, "name": None, "tags": ["x"], "_key": b"k"},
    ]


def test_a_column_that_is_null_throughout_is_not_left_out_silently(
    invoke: Invoke, url: str, file: File, tmp_path: Path
) -> None:
    done = invoke("produce", url, "events", file('{"a":1,"b":null}\n{"a":2,"b":null}\n'), "--json")
    assert done.exit_code == 0
    assert "'b': null throughout" in done.stderr
    assert f"stream alter {url} events --schema FILE" in done.stderr
    known = invoke("produce", url, "events", file('{"a":1,"b":null}\n{"a":2,"b":3}\n'), "--json")
    assert known.stderr == ""


def test_an_empty_list_records_no_type_and_is_taken_once_there_is_one(
    invoke: Invoke, url: str, file: File
) -> None:
    def produced(*rows: str) -> Result:
        return invoke("produce", url, "events", file("\n".join(rows)), "--json")

    refused = produced('{"id":1,"a":[]}')
    assert refused.exit_code == 2
    assert "line 1: column 'a.element' is null" in refused.stderr
    assert "declare the stream's schema" in refused.stderr
    for rows in (
        ['{"id":1,"a":[1]}'],
        ['{"id":2,"a":[]}'],
        ['{"id":3,"a":[null],"s":{"x":null,"y":1}}'],
    ):
        assert produced(*rows).exit_code == 0
    other = produced('{"id":4,"a":["x"]}')
    assert other.exit_code == 2
    assert "column 'a' is list<element: int64>, and list<item: string> is given" in other.stderr
    assert produced('{"id":5,"s":{"x":"t","y":2}}').exit_code == 0
    found = lines(url, columns=["a", "s"])
    assert [row["a"] for row in found] == [[1], [], [None], None]
    assert [row["s"] for row in found[2:]] == [{"y": 1, "x": None}, {"y": 2, "x": "t"}]


def test_a_later_line_says_what_an_empty_list_is_a_list_of(
    invoke: Invoke, url: str, file: File
) -> None:
    text = '{"a":[]}\n' * 300 + '{"a":["x"]}\n'
    assert invoke("produce", url, "events", file(text), "--json").exit_code == 0
    assert [row["a"] for row in lines(url, columns=["a"])] == [[]] * 300 + [["x"]]


def test_an_empty_column_of_csv_records_no_type(invoke: Invoke, url: str, file: File) -> None:
    for text, status in (("id,a\n1,\n", 0), ("id,a\n2,x\n", 0), ("id,a\n3,\n", 0)):
        assert invoke("produce", url, "events", file(text), "--csv").exit_code == status
    assert [row["a"] for row in lines(url, columns=["a"])] == [None, "x", None]


def test_a_column_that_comes_later_is_null_before(invoke: Invoke, url: str, file: File) -> None:
    for row in ('{"a":1,"b":null}', '{"a":2,"b":"x"}'):
        assert invoke("produce", url, "events", file(f"{row}\n"), "--json").exit_code == 0
    assert invoke("read", url, "events").stdout == '{"a":1,"b":null}\n{"a":2,"b":"x"}\n'


@pytest.mark.parametrize(
    ("declared", "then"), [("double", ("1.0", "1.5")), ("decimal(5, 1)", ('"1.0"', '"1.5"'))]
)
def test_a_value_of_another_type_is_refused_until_the_advice_is_followed(
    invoke: Invoke, url: str, file: File, declared: str, then: tuple[str, str]
) -> None:
    assert invoke("produce", url, "events", file('{"a":1}\n'), "--json").exit_code == 0
    refused = invoke("produce", url, "events", file('{"a":1.5}\n'), "--json")
    assert refused.exit_code == 2
    advised = f"stream alter {url} events --schema FILE"
    assert advised in refused.stderr
    altered = invoke(*advised.replace("FILE", file(f'{{"a": "{declared}"}}')).split())
    assert altered.exit_code == 0
    assert f"a  {declared.replace('double', 'float64')}  declared" in " ".join(
        altered.stdout.split()
    ).replace(" ", "  ").replace(",  ", ", ")
    assert invoke("produce", url, "events", file('{"a":1.5}\n'), "--json").exit_code == 0
    assert invoke("read", url, "events").stdout == f'{{"a":{then[0]}}}\n{{"a":{then[1]}}}\n'


def test_opaque_values_and_rows_do_not_meet_in_a_stream(
    invoke: Invoke, url: str, file: File
) -> None:
    assert invoke("produce", url, "events", file('{"a":1}\n'), "--json").exit_code == 0
    refused = invoke("produce", url, "events", file("opaque\n"))
    assert refused.exit_code == 2
    assert "opaque values" in refused.stderr
    assert "Produce them as columns (--json, --csv" in refused.stderr
    assert invoke("read", url, "events").stdout == '{"a":1}\n'


@pytest.mark.parametrize(
    ("second", "says"),
    [('{"id":1.5}', "1.5 (float) is no int64"), ('{"id":"x"}', "is int64, and string is given")],
)
def test_a_column_keeps_the_type_of_its_first_value(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch, second: str, says: str
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 20)
    done = invoke("produce", url, "events", file(f'{{"id":1,"at":null}}\n{second}\n'), "--json")
    assert done.exit_code == 2
    assert "line 2: " in done.stderr
    assert f"stream alter {url} events --schema FILE" in done.stderr
    assert "column 'id'" in done.stderr
    assert says in done.stderr
    assert "declare another" in done.stderr
    assert lines(url, columns=["id"]) == [{"id": 1}]


def test_a_line_that_is_no_object_is_named_and_what_precedes_it_is_sent(
    invoke: Invoke, url: str, file: File
) -> None:
    for wrong in ("nope", "[1]", '{"id":'):
        done = invoke("produce", url, "events", file(f'{{"id":1}}\n{wrong}\n{{"id":2}}'), "--json")
        assert done.exit_code == 2
        assert "line 2 is not a JSON object" in done.stderr
        assert "1 record accepted" in done.stdout


@pytest.mark.parametrize("good", [1, 2, 5, 100])
def test_a_value_that_does_not_fit_is_named_by_its_line_and_what_precedes_it_is_sent(
    invoke: Invoke, url: str, file: File, good: int
) -> None:
    numbers = [number + 0.5 if number == good - 1 else number for number in range(good)]
    text = "".join(f'{{"id":{number}}}\n\n' for number in numbers)
    done = invoke("produce", url, "events", file(text + '{"id":"x"}\n{"id":2}\n'), "--json")
    assert done.exit_code == 2
    assert f"line {2 * good + 1}: column 'id'" in done.stderr
    assert "nor was what follows" in done.stderr
    assert [row["id"] for row in lines(url, columns=["id"])] == numbers


def test_a_first_line_that_does_not_fit_is_named(invoke: Invoke, url: str, file: File) -> None:
    done = invoke("produce", url, "events", file(f'{{"id":{10**30}}}\n{{"id":1}}\n'), "--json")
    assert (done.exit_code, done.stdout) == (2, "✗ nothing was sent\n")
    assert "line 1: column 'id'" in done.stderr


def test_a_declared_schema_says_what_text_means(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("strict", schema=SCHEMA)
    text = '{"id":1,"at":"2026-01-02T03:04:05Z","amount":"1.20"}\n{"id":2,"amount":3}\n'
    done = invoke("produce", url, "strict", file(text), "--json")
    assert done.exit_code == 0, done.stderr
    first, second = lines(url, "strict", columns=list(SCHEMA))
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert first == {"id": 1, "at": at, "amount": Decimal("1.20")}
    assert second == {"id": 2, "at": None, "amount": Decimal("3.00")}
    for wrong, says in (
        ('{"id":1,"extra":1}', "extra"),
        ('{"at":"2026-01-02T03:04:05Z"}', "id"),
        ('{"id":1,"at":"soon"}', "soon"),
        ('{"id":1.5}', "1.5 (float) is no int64"),
        ('{"id":true}', "bool is given"),
        ('{"id":"1"}', "string is given"),
    ):
        done = invoke("produce", url, "strict", file(wrong), "--json")
        assert done.exit_code == 2
        assert says in done.stderr
    assert len(lines(url, "strict")) == 2


NESTED = {
    "s": "struct<x: int64, y: double>",
    "l": "list<struct<x: int64>>",
    "m": "map<string, struct<x: int32, b: binary>>",
    "f": "float",
}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('{"s":{"x":1,"lost":"gone"}}', "s.lost  string is given, and not declared"),
        ('{"s":{"X":7}}', "s.X  int64 is given, and not declared (did you mean 'x'?)"),
        ('{"l":[{"x":1},{"lost":2}]}', "l.element.lost  int64 is given, and not declared"),
        ('{"m":{"k":{"x":1,"lost":2}}}', "m.value.lost  int64 is given, and not declared"),
        ('{"m":{"k":{"x":1.5}}}', "1.5 (float) is no int32"),
        ('{"f":1e300}', "1e+300 (float) is no float"),
    ],
)
def test_what_is_not_declared_within_a_column_is_refused_and_not_dropped(
    invoke: Invoke, url: str, make: Make, file: File, wrong: str, says: str
) -> None:
    make("nested", schema=NESTED)
    good = '{"s":{"y":0.5},"l":[{"x":1}],"m":{"k":{"b":"text"}},"f":0.5}'
    done = invoke("produce", url, "nested", file(f"{good}\n{wrong}\n"), "--json")
    assert done.exit_code == 2
    assert f"line 2: column '{wrong[2]}" in done.stderr
    assert says in done.stderr
    (row,) = lines(url, "nested", columns=list(NESTED))
    assert row == {
        "s": {"x": None, "y": 0.5},
        "l": [{"x": 1}],
        "m": [("k", {"x": None, "b": b"text"})],
        "f": 0.5,
    }


def test_a_field_that_earlier_lines_did_not_have_is_added(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 14)
    rows = '{"s":{"x":1}}\n{"s":{"y":2}}\n'
    for _ in range(2):
        assert invoke("produce", url, "events", file(rows), "--json").exit_code == 0
    both = [{"s": {"x": 1, "y": None}}, {"s": {"x": None, "y": 2}}]
    assert lines(url, columns=["s"]) == both * 2


def test_files_of_columns(invoke: Invoke, url: str, tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "_key": [b"x", b"y", b"z"]})
    pq.write_table(table, tmp_path / "parquet")
    for name, new in (("stream", pa.ipc.new_stream), ("arrow", pa.ipc.new_file)):
        with new(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    (tmp_path / "csv").write_text("id,name,_key\n1,a,x\n2,b,y\n3,c,z\n")
    for name, flag in (
        ("parquet", "--parquet"),
        ("stream", "--arrow"),
        ("arrow", "--arrow"),
        ("csv", "--csv"),
    ):
        done = invoke("produce", url, "events", str(tmp_path / name), flag)
        assert done.exit_code == 0, (name, done.stderr)
        assert "3 records accepted" in done.stdout
    rows = lines(url, columns=["id", "name", "_key"])
    assert [row["id"] for row in rows] == [1, 2, 3] * 4
    assert rows[:3] == table.to_pylist()


def test_a_damaged_file_of_columns_says_how_far_it_was_read(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file(b"PAR1 and no more"), "--parquet")
    assert done.exit_code == 2
    assert "after 0 rows" in done.stderr


def test_large_batches_are_sent_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_input, "PIECE_BYTES", 1000)
    batch = pa.record_batch({"id": pa.array(range(1000), pa.int64())})
    slices = list(produce_input._sliced(batch))
    assert [piece.num_rows for piece in slices] == [125] * 8
    assert pa.Table.from_batches(slices).to_pydict() == batch.to_pydict()
