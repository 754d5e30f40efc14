"""Files as people have them: CSV of all kinds, compressed lines, keys in a column; lines out."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater import blocking
from headwater.buffer.producer import BlockingProducer
from headwater.cli import produce_input
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make, lines, values


def rows(url: str, *columns: str, stream: str = "events") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in lines(url, stream, columns=list(columns))]


def test_csv_cells_are_what_all_of_their_column_are(invoke: Invoke, url: str, file: File) -> None:
    text = (
        "id,zip,price,ok,day,at,zoned,long,note,none\n"
        "1,00007,1.5,true,2026-01-02,2026-01-02 03:04,2026-01-02T03:04:05Z,"
        '0.1234567890123456789,"",\n'
        '2,12345,2,false,2026-01-03,2026-01-02 03:05,2026-01-02T03:04:05+01:00,1,"a\nb",\n'
        "3,,,,,,,,,\n"
    )
    done = invoke("produce", url, "events", file(text), "--csv")
    assert done.exit_code == 0, done.stderr
    assert "'none': empty throughout" in done.stderr
    first, second, third = rows(
        url, "id", "zip", "price", "ok", "day", "at", "zoned", "long", "note"
    )
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert first[:5] == (1, "00007", 1.5, True, date(2026, 1, 2))
    assert first[5] == at.replace(second=0, tzinfo=None)
    assert first[6:] == (at, "0.1234567890123456789", "")
    assert second[6] == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert second[8] == "a\nb"
    assert third == (3, *(None,) * 8)


def test_a_csv_number_is_the_same_number_and_not_the_same_text(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file("a,b\n0.10,1e5\n2.50,2\n"), "--csv")
    assert done.exit_code == 0, done.stderr
    assert rows(url, "a", "b") == [(0.1, 100000.0), (2.5, 2.0)]


def test_csv_of_a_declared_stream_has_its_types(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("typed", schema={"id": "int32", "d": "decimal(10, 2)", "f": "float", "t": "string"})
    text = "id;d;f;t\n00007;1.20;0.1;0042\n8;;;\n"
    done = invoke("produce", url, "typed", file(text), "--csv", "--delimiter=;")
    assert done.exit_code == 0, done.stderr
    assert [row[0] for row in rows(url, "id", stream="typed")] == [7, 8]
    assert rows(url, "t", stream="typed") == [("0042",), (None,)]
    for wrong, column in (("x;1;1;t", "id"), ("1;1.205;1;t", "d"), ("1;1;1e50;t", "f")):
        done = invoke(
            "produce", url, "typed", file(f"id;d;f;t\n9;;;\n{wrong}\n"), "--csv", "--delimiter=;"
        )
        assert done.exit_code == 2
        assert f"row 2, column '{column}'" in done.stderr
        assert "1 record accepted" in done.stdout


def test_a_cell_that_is_not_what_its_column_was_is_named_by_its_row(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 64)
    numbers = "\n".join(str(number) for number in range(1, 100))
    for wrong in ("00007", "x", "1.5", "99999999999999999999"):
        done = invoke("produce", url, "events", file(f"id\n{numbers}\n{wrong}\n5\n"), "--csv")
        assert done.exit_code == 2
        assert f"row 100, column 'id': '{wrong}' is no int64" in done.stderr
        assert "99 records accepted" in done.stdout


@pytest.mark.parametrize(
    ("text", "accepted", "said"),
    [
        pytest.param('1,"a\n2,b\n3,c\n', 0, "row 1: a quote opens in line 2 and", id="first"),
        pytest.param('1,x\n2,"a', 1, "row 2: a quote opens in line 3 and", id="cut in a cell"),
        pytest.param('1,x\n2,"a""', 1, "row 2: a quote opens in line 3 and", id="cut after two"),
        pytest.param('1,x\n\n2,"a\nb"\n3,"c', 2, "row 3: a quote opens in line 6", id="lines"),
        # Counted, these quotes are even.
        pytest.param('1,5" pipe\n2,"b\n3,c', 1, "row 2: a quote opens in line 3", id="inches"),
        pytest.param('1,x\n"2\n3,c', 1, "row 2: a quote opens in line 3", id="fewer cells"),
        pytest.param('1,"a\nb",2,"c\nd', 0, "row 1: a quote opens in line 3", id="more cells"),
        pytest.param("1,x\n\n2,y\n6,x,y\n7,z\n", 2, "has 2 cells, and this one 3", id="more"),
        pytest.param("1,x\n2,y\n6\n7,z\n", 2, "row 3: the line of names has 2", id="fewer"),
        pytest.param("1,x\n2,\udcff\n3,y\n", 1, "row 2: column 'name' is not UTF-8", id="bytes"),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_csv_that_is_wrong_is_refused_by_its_row_and_what_is_before_it_is_sent(
    invoke: Invoke,
    url: str,
    file: File,
    text: str,
    accepted: int,
    said: str,
    ends: str,
    delimiter: str,
) -> None:
    data = f"id,name\n{text}".replace(",", delimiter).replace("\n", ends)
    path = file(data.encode(errors="surrogateescape"))
    done = invoke("produce", url, "events", path, "--csv", f"--delimiter={delimiter}")
    assert done.exit_code == 2
    assert said in done.stderr
    assert "It was not sent, nor was what follows" in done.stderr
    assert len(lines(url)) == accepted


@pytest.mark.parametrize("after", [0, 1, 100])
def test_csv_that_is_wrong_in_a_later_block_is_refused_by_its_row(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 64)
    good = "id,n\n" + "".join(f"{number},x\n" for number in range(50))
    for wrong, said in (("7,x,y\n", "row 51: the line of"), ('7,"x\n', "row 51: a quote opens in")):
        done = invoke("produce", url, "events", file(good + wrong + "8,z\n" * after), "--csv")
        assert done.exit_code == 2
        assert said in done.stderr
        assert "50 records accepted" in done.stdout


def test_csv_without_a_line_of_names_that_ends_is_refused(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file('"id,name\n1,x\n'), "--csv")
    assert done.exit_code == 2
    assert "has no line of names, or a quote opens in it and is not closed" in done.stderr
    done = invoke("produce", url, "events", file(",".join(map(str, range(10_001)))), "--csv")
    assert done.exit_code == 2
    assert "has more than 10,000 columns" in done.stderr


def test_the_last_line_of_csv_needs_no_end_and_a_quote_within_a_cell_is_text(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file('id,n\n1,5" pipe\n2,"a ""b"""\nx,c'), "--csv")
    assert done.exit_code == 0, done.stderr
    assert rows(url, "id", "n") == [("1", '5" pipe'), ("2", 'a "b"'), ("x", "c")]


@pytest.mark.parametrize("packed", ["gz", "zst", "two members"])
@pytest.mark.parametrize("kind", ["lines", "--json", "--csv"])
def test_compressed_files_are_read_as_what_is_in_them(
    invoke: Invoke, url: str, tmp_path: Path, kind: str, packed: str
) -> None:
    head = "id\n" if kind == "--csv" else ""
    made = [f'{{"id":{n}}}' if kind == "--json" else str(n) for n in range(50_000)]
    data = (head + "\n".join(made) + "\n").encode()
    path = tmp_path / "input"
    if packed == "gz":
        path.write_bytes(gzip.compress(data))
    elif packed == "two members":
        path.write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))
    else:
        with pa.output_stream(str(path), compression="zstd") as out:
            out.write(data)
    flags = [] if kind == "lines" else [kind]
    done = invoke("produce", url, "events", str(path), *flags)
    assert done.exit_code == 0, done.stderr
    if kind == "lines":
        assert values(url) == [str(n).encode() for n in range(50_000)]
    else:
        assert [row[0] for row in rows(url, "id")] == list(range(50_000))


def test_a_compressed_file_that_is_cut_off_is_not_taken_for_whole(
    invoke: Invoke, url: str, file: File
) -> None:
    text = b"".join(b"line %d\n" % n for n in range(100_000))
    done = invoke("produce", url, "events", file(gzip.compress(text)[:-5000]))
    assert done.exit_code == 2
    assert "after line" in done.stderr


def test_the_text_of_a_column_may_be_the_key(invoke: Invoke, url: str, tmp_path: Path) -> None:
    table = pa.table({"id": [7, None], "name": ["a", "b"], "raw": [b"\xff", b"y"]})
    path = tmp_path / "input"
    pq.write_table(table, path)
    for column in ("id", "name", "raw"):
        done = invoke("produce", url, "events", str(path), "--parquet", f"--key-column={column}")
        assert done.exit_code == 0, done.stderr
    keys = [row[0] for row in rows(url, "_key")]
    assert keys == [b"7", None, b"a", b"b", b"\xff", b"y"]
    path.write_text('{"name":"c","id":1}\n')
    assert invoke("produce", url, "events", str(path), "--json", "--key-column=id").exit_code == 0
    told = invoke("produce", url, "events", str(path), "--json", "--key-column=none")
    assert (told.exit_code, "--key-column none: these rows have" in told.stderr) == (2, True)
    assert invoke("produce", url, "events", str(path), "--key-column=id").exit_code == 2


def test_a_tab_may_be_written_as_people_write_it(invoke: Invoke, url: str, file: File) -> None:
    done = invoke("produce", url, "events", file("k\tv\n"), r"--key-separator=\t")
    assert done.exit_code == 0, done.stderr
    assert rows(url, "_key", "_value") == [(b"k", b"v")]
    assert invoke("read", url, "events", r"--key-separator=\x1f").stdout == "k\x1fv\n"
    assert invoke("read", url, "events", r"--key-separator=\\t").stdout == "k\\tv\n"


def test_lines_that_would_be_read_as_others_are_refused(invoke: Invoke, url: str) -> None:
    with BlockingProducer(url, "events") as producer:
        producer.produce([b"", None, b"c"], keys=[b"a", b"b", None])
    told = invoke("read", url, "events")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "LSN 2 has null for its value" in told.stderr
    assert invoke("read", url, "events", "--null=NULL").stdout == "\nNULL\nc\n"
    assert invoke("read", url, "events", "--null=").stdout == "\n\nc\n"
    alike = invoke("read", url, "events", "--null=c")
    assert (alike.exit_code, "LSN 3 has the text of --null for its value" in alike.stderr) == (
        2,
        True,
    )
    keyed = invoke("read", url, "events", "--start=3", "--key-separator=:")
    assert (keyed.exit_code, "LSN 3 has null for its key" in keyed.stderr) == (2, True)
    blocking.create_stream(url, "more")
    with BlockingProducer(url, "more") as producer:
        producer.produce([b"a", b"b\nc"], keys=[b"x", b"y:z"])
    told = invoke("read", url, "more")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "LSN 2 has a newline in it" in told.stderr
    told = invoke("read", url, "more", "--key-separator=:")
    assert "LSN 2 has the separator in its key" in told.stderr
    assert invoke("read", url, "more", "--format=json").exit_code == 0


def test_a_null_in_the_only_column_of_csv_is_refused(invoke: Invoke, url: str, file: File) -> None:
    """It would be an empty line, which readers of CSV skip."""
    assert invoke("produce", url, "events", file("a,b\n1,x\n,y\n3,z\n"), "--csv").exit_code == 0
    told = invoke("read", url, "events", "--columns=a", "--format=csv")
    assert (told.exit_code, "null in the only column" in told.stderr) == (2, True)
    both = invoke("read", url, "events", "--columns=a,b", "--format=csv").stdout
    assert both == '"a","b"\n1,"x"\n,"y"\n3,"z"\n'


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_range_that_is_an_index_of_pandas_is_not_left_out(
    invoke: Invoke, url: str, tmp_path: Path, kind: str
) -> None:
    index = {"kind": "range", "name": "id", "start": 1, "stop": 4, "step": 1}
    table = pa.table({"v": ["a", "b", "c"]})
    pandas = {b"pandas": msgspec.json.encode({"index_columns": [index], "columns": []})}
    path = tmp_path / "input"
    with path.open("wb") as file:
        if kind == "parquet":
            pq.write_table(table.replace_schema_metadata(pandas), file)
        else:
            with pa.ipc.new_file(file, table.replace_schema_metadata(pandas).schema) as writer:
                writer.write_table(table)
    told = invoke("produce", url, "events", str(path), f"--{kind}")
    assert (told.exit_code, "the index 'id' of pandas is a range" in told.stderr) == (2, True)
    assert rows(url, "_lsn") == []
