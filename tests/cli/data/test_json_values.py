"""`headwater produce --json`: a value arrives as it is, or its line is named; fast or slowly."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.buffer.stream.schema import declared_schema
from headwater.cli.json_lines import JsonColumns, is_exact_decimal
from headwater.cli.produce_input import LineBlock, TargetColumns
from headwater.cli.produce_json import JsonRows
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make, lines

DIGITS = "0.1234567890123456789"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("12345678901234567890", "a whole number beyond int64: write it as text"),
        (DIGITS, f"{DIGITS} does not fit a double"),
        ("1e400", "does not fit a double"),
        ("1e-400", "does not fit a double"),
        ("1e-320000", "does not fit a double"),
        ("1e999999999", "does not fit a double"),
        ("9007199254740993.5", "does not fit a double"),
        ("[1.5, 9007199254740993]", "9007199254740993"),
        (f'{{"x": [{DIGITS}]}}', f"{DIGITS} does not fit a double"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 700])
def test_a_number_that_cannot_be_held_is_named_by_its_line(
    invoke: Invoke, url: str, file: File, number: str, says: str, before: int
) -> None:
    good = "".join(f'{{"id":{n},"f":{n}.5}}\n' for n in range(before))
    text = f'{good}{{"id":1,"n":{number}}}\n{{"id":2}}\n'
    done = invoke("produce", url, "events", file(text), "--json")
    assert done.exit_code == 2
    assert f"line {before + 1:,}: column 'n'" in done.stderr
    assert says in done.stderr
    assert "nor was what follows" in done.stderr
    if before:
        assert [row["id"] for row in lines(url, columns=["id"])] == list(range(before))


def test_an_exponent_beyond_all_bounds_is_named_by_its_line(
    invoke: Invoke, url: str, file: File
) -> None:
    text = '{"id":1}\n{"id":2,"n":1e999999999999999999999}\n'
    done = invoke("produce", url, "events", file(text), "--json")
    assert done.exit_code == 2
    assert "line 2 has 1e999999999999999999999, whose exponent is out of range" in done.stderr
    assert [row["id"] for row in lines(url, columns=["id"])] == [1]


def test_a_whole_number_is_taken_beside_one_with_a_point(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("whole", schema={"i": "int64"})
    text = '{"i":7}\n{"i":1.0}\n{"i":9007199254740993}\n{"i":1.5}\n'
    done = invoke("produce", url, "whole", file(text), "--json")
    assert (done.exit_code, "line 4: column 'i': 1.5" in done.stderr) == (2, True)
    assert [row["i"] for row in lines(url, "whole", columns=["i"])] == [7, 1, 9007199254740993]


def test_values_of_two_kinds_are_named_in_the_words_of_json(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file('{"a":"1"}\n{"a":1}\n'), "--json")
    assert done.exit_code == 2
    assert "line 2: column 'a' has numbers and text, and a column has one type" in done.stderr


def test_a_double_is_taken_for_the_number_that_it_is_written_as(
    invoke: Invoke, url: str, file: File
) -> None:
    written = [
        "0.1",
        "0.10000000000000001",  # as C writes 17 digits
        "0.1000000000000000055511151231257827",  # all that a double has
        "0.30000000000000004",
        "9007199254740992.0",
        "1e22",
        "5e-324",
        "1.7976931348623157e308",
        "123456789012345690000000.0",  # as JavaScript fills up with zeros
        "1.50000000000000000000",
    ]
    text = "".join(f'{{"f":{number}}}\n' for number in written)
    done = invoke("produce", url, "events", file(text), "--json")
    assert done.exit_code == 0, done.stderr
    assert [row["f"] for row in lines(url, columns=["f"])] == [float(one) for one in written]


def test_whole_numbers_and_decimals_arrive_digit_by_digit(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("exact", schema={"i": "int64", "d": "decimal(38, 19)", "s": "struct<d: decimal(25, 0)>"})
    rows = [
        f'{{"i":9007199254740993,"d":{DIGITS},"s":{{"d":12345678901234567890}}}}',
        '{"i":-9223372036854775808,"d":1e3,"s":{"d":1e2}}',
        f'{{"i":9223372036854775807,"d":"{DIGITS}","s":{{"d":"7"}}}}',
    ]
    done = invoke("produce", url, "exact", file("\n".join(rows)), "--json")
    assert done.exit_code == 0, done.stderr
    found = lines(url, "exact", columns=["i", "d", "s"])
    assert [row["i"] for row in found] == [9007199254740993, -(2**63), 2**63 - 1]
    assert [row["d"] for row in found] == [Decimal(DIGITS), Decimal(1000), Decimal(DIGITS)]
    assert [row["s"]["d"] for row in found] == [Decimal(12345678901234567890), 100, 7]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('{"id":1,"extra":1}', "extra  int64 is given, and not declared"),
        ('{"f":1.5}', "id"),
        ('{"id":1,"f":9007199254740993}', "9007199254740993"),
        (f'{{"id":1,"f":{DIGITS}}}', "does not fit a double"),
        ('{"id":1,"f":NaN}', "not a JSON object"),
        ('{"id":1,"id":2}', "twice"),
        ('{"id":1} {"id":2}', "not a JSON object"),
        ('{"id":1,"f":1e999}', "does not fit a double"),
        ('{"id":1,"t":"2026-01-02 25:00:00"}', "25:00:00"),
    ],
)
def test_what_a_declared_stream_does_not_take_is_named_by_its_line(
    invoke: Invoke, url: str, make: Make, file: File, wrong: str, says: str
) -> None:
    make("strict", schema={"id": "int64 not null", "f": "double", "t": "timestamp[us]"})
    good = "".join(f'{{"id":{n},"f":{n}.25,"t":"2026-01-02 03:04:05"}}\n' for n in range(300))
    done = invoke("produce", url, "strict", file(f'{good}{wrong}\n{{"id":9}}\n'), "--json")
    assert done.exit_code == 2
    assert "line 301" in done.stderr
    assert says in done.stderr
    assert [row["id"] for row in lines(url, "strict", columns=["id"])] == list(range(300))


TYPES: dict[str, Any] = {
    "i": "int64",
    "small": "int16",
    "f": "double",
    "single": "float",
    "t": "string",
    "b": "boolean",
    "at": "timestamp[us, UTC]",
    "day": "date32",
    "raw": "binary",
    "d": "decimal(12, 3)",
    "l": "list<int64>",
    "s": "struct<x: int64, y: list<struct<z: double>>>",
}


def _odd(chance: random.Random, plain: str, *odd: str) -> str:
    """Mostly what everybody writes, and now and then something else."""
    return chance.choice(odd) if odd and chance.random() < 0.02 else plain


def _line(chance: random.Random) -> str:
    number = str(chance.randrange(-(10**6), 10**6))
    double = repr(chance.choice([chance.random(), chance.random() * 1e-5, float(number)]))
    text = json.dumps(
        chance.choice(["", "é", "2026-01-02", 'q"\\', "k" * 20, "123456789012345678"])
    )
    identifier = str(chance.choice((1, -1)) * chance.randrange(10**17, 9 * 10**18))
    made = {
        "i": _odd(
            chance, chance.choice([number, identifier]), "1.0", str(2**63), "1.5", "null", "-0"
        ),
        "small": _odd(chance, str(chance.randrange(-99, 99)), "40000", "1.0"),
        "f": _odd(
            chance, double, DIGITS, "1e400", "1e-400", identifier, "7", "1E5", '"1"', "-0", "1.8e18"
        ),
        "single": _odd(chance, "0.5", "0.1", "1e39", "null"),
        "t": _odd(chance, text, "1", "null", '"\\ud800"'),
        "b": _odd(chance, chance.choice(["true", "false"]), "0", "null"),
        "at": _odd(chance, '"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05"', '"soon"', "5"),
        "day": _odd(chance, '"2026-01-02"', '"2026-13-02"', "null"),
        "raw": _odd(chance, text, '{"base64":"//4="}', "null"),
        "d": _odd(chance, "1.5", '"1.250"', "1.2345", "12", "1e2", "12345678901.5", DIGITS),
        "l": _odd(chance, f"[1,{number}]", "[]", "[null]", "[1.5]", "null"),
        "s": _odd(chance, f'{{"x":1,"y":[{{"z":{double}}}]}}', '{"q":1}', "{}", '{"x":1,"x":2}'),
    }
    kept = [name for name in made if chance.random() < 0.9]
    inner = ", ".join(f'"{name}": {made[name]}' for name in kept)
    return _odd(chance, f"{{{inner}}}", f" {{{inner}}} ", "", "[1]", f'{{{inner}}} {{"i":1}}', "{}")


class Unchecked(TargetColumns):
    """Columns of a stream that takes everything."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self.alter = ""
        self.is_declared = schema is not None
        self._declared = [] if schema is None else list(schema)

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self._declared}

    def check(self, records: pa.RecordBatch) -> None:
        return None

    def record(self, records: pa.RecordBatch | pa.Table) -> None:
        return None


class Slow(JsonColumns):
    """Leaves everything to the slow way."""

    def __init__(self) -> None:
        super().__init__({}, set(), may_round=True)

    def read(self, data: bytes) -> None:
        return None


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_fast_is_what_is_read_line_by_line(seed: int, is_declared: bool) -> None:
    chance = random.Random(seed)
    schema = declared_schema(TYPES) if is_declared else None
    fast, slow = (JsonRows(Unchecked(schema)) for _ in range(2))
    read_fast = 0
    for _ in range(20):
        data = "\n".join(_line(chance) for _ in range(chance.choice((1, 2, 8)))).encode()
        block = LineBlock(1, data, 0)
        slow._columns_reader = Slow()
        read_fast += fast._read_fast(data) is not None
        told = []
        for rows in (fast, slow):
            try:
                table, error = rows.decode("input", block)
                told.append((table.to_pylist(), table.schema, str(error)))
            except Exception as error:
                told.append(([], pa.schema([]), str(error)))
        names = set(told[1][1].names)
        assert told[0][2] == told[1][2], data
        # As text: -0.0 equals 0.0, and is another value.
        kept = [{k: v for k, v in row.items() if k in names} for row in told[0][0]]
        slow_rows = [{k: row[k] for k in one} for one, row in zip(kept, told[1][0], strict=True)]
        assert repr(kept) == repr(slow_rows)
        for field in told[1][1]:
            assert told[0][1].field(field.name).type == field.type
        assert all(row.get(name) is None for row in told[0][0] for name in row.keys() - names)
    assert read_fast or not is_declared


@pytest.mark.parametrize(
    ("line", "is_fast"),
    [
        ('{"i":1800000000000000001,"f":1.5}', True),
        ('{"i":-9223372036854775807,"f":1.8e18}', True),
        ('{"i":1,"f":1.5,"t":"order 18446744073709551617 (Infinity)"}', True),
        ('{"i":9007199254740993,"f":2.5,"s":{"x":9007199254740993,"y":[{"z":0.5}]}}', True),
        ('{"i":1,"f":1800000000000000001}', False),
        ('{"i":1,"f":-9007199254740993}', False),
        ('{"i":1,"f":12345678901234567891}', False),
        ('{"i":1,"f":9007199254740992}', True),
        ('{"i":9007199254740993,"f":0.5,"s":{"x":1,"y":[{"z":9007199254740993}]}}', False),
        (f'{{"i":1,"f":{DIGITS}}}', False),
        ('{"i":1800000000000000001,"f":1.8e18}', False),
    ],
)
def test_only_what_a_double_column_rounds_is_read_line_by_line(line: str, is_fast: bool) -> None:
    rows = JsonRows(Unchecked(declared_schema({name: TYPES[name] for name in "ifts"})))
    assert (rows._read_fast(line.encode()) is not None) == is_fast


NUMBERS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,22})\.[0-9]{1,22}([eE][-+]?[0-9]{1,3})?", fullmatch=True
)
WHOLE = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.integers(2**53 - 4, 2**53 + 4).map(str),
    st.integers(10**17, 10**20).map(str),
    st.sampled_from(["0", "-0", "1800000000000000001", "9223372036854775807"]),
)
MIXED = st.one_of(WHOLE, NUMBERS, st.floats(allow_nan=False, allow_infinity=False).map(repr))


@given(st.lists(st.tuples(WHOLE, MIXED, MIXED), min_size=1, max_size=4))
@example([("1800000000000000001", "1.5", "-0"), ("1", "1800000000000000000", "1e22")])
def test_every_number_that_is_read_fast_is_the_one_that_was_written(
    numbers: list[tuple[str, str, str]],
) -> None:
    data = "\n".join(f'{{"i":{i},"f":{f},"l":[{n},null]}}' for i, f, n in numbers)
    rows = JsonRows(Unchecked(declared_schema({"i": "int64", "f": "double", "l": "list<double>"})))
    found = rows._read_fast(data.encode())
    if found is None:
        return  # line by line
    table = pa.table(found).to_pylist()
    assert [row["i"] for row in table] == [int(i) for i, _, _ in numbers]
    for row, (_, f, n) in zip(table, numbers, strict=True):
        for value, written in ((row["f"], f), (row["l"][0], n)):
            assert repr(value) == repr(float(written))
            assert is_exact_decimal(Decimal(written), value)


@pytest.mark.parametrize("kind", ["open", "declared"])
def test_minus_zero_keeps_its_sign_in_a_column_of_doubles(
    invoke: Invoke, url: str, make: Make, file: File, kind: str
) -> None:
    if kind == "declared":
        make("declared", schema={"i": "int64", "f": "double", "l": "list<double>"})
    else:
        make("open")
    text = '{"i":-0,"f":-0,"l":[-0,0.5]}\n{"i":3,"f":1.5,"l":[0]}\n{"i":1,"f":-0.0,"l":[1.0]}\n'
    done = invoke("produce", url, kind, file(text), "--json")
    assert done.exit_code == 0, done.stderr
    found = lines(url, kind, columns=["i", "f", "l"])
    assert repr([row["i"] for row in found]) == "[0, 3, 1]"
    assert repr([row["f"] for row in found]) == "[-0.0, 1.5, -0.0]"
    assert repr(found[0]["l"]) == "[-0.0, 0.5]"


DEEP = '{"a":' * 3_000 + "1" + "}" * 3_000


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"id":2,"s":"M\xfcller"}', "byte 0xfc at offset 14 of the line"),
        (b'{"id":2,"s":"\xed\xa0\x80"}', "is not UTF-8: byte 0xed at offset 13"),
        (b'{"id":2,"na\xefve":1}', "is not UTF-8: byte 0xef at offset 11"),
        (b'{"id":2,"o":{"s":["\xff"]}}', "is not UTF-8: byte 0xff"),
        (b'{"id":2,"_key":"\xfc"}', "is not UTF-8: byte 0xfc"),
        (b'{"id":2,"s":"\\ud800"}', "has \\ud800, half of a surrogate pair"),
        (
            b'{"id":2,"s":"\\ud83d\\ude00\\\\ud800 \\udc00"}',
            "has \\udc00, half of a surrogate pair",
        ),
        (b'{"id":2,"o":' + DEEP.encode() + b"}", "is nested more than 100 levels deep"),
        (b'{"id":2,"o":' + b"[" * 500 + b"]" * 500 + b"}", "is nested more than 100 levels deep"),
    ],
)
@pytest.mark.parametrize(
    "options", [(), ("--producer-id", "p"), ("--producer-id", "p", "--resume")], ids=len
)
@pytest.mark.parametrize("before", [1, 700])
def test_a_line_that_cannot_be_decoded_is_named_and_those_before_it_are_sent(
    invoke: Invoke,
    url: str,
    file: File,
    line: bytes,
    says: str,
    options: tuple[str, ...],
    before: int,
) -> None:
    good = "".join(f'{{"id":{n},"s":"good"}}\n' for n in range(before)).encode()
    path = file(good + line + b'\n{"id":3}\n')
    done = invoke("produce", url, "events", path, "--json", *options)
    assert done.exit_code == 2, done.stderr
    assert f"line {before + 1:,} " in done.stderr
    assert says in done.stderr
    assert "It was not sent, nor was what follows" in done.stderr
    assert [row["id"] for row in lines(url, columns=["id"])] == list(range(before))


SPACES = st.lists(st.text(" \t\r", max_size=3), min_size=4, max_size=4)
SHAPES = {"double": "%s", "list<double>": "[%s]", "struct<x: double>": '{"x":%s}'}


@given(NUMBERS, SPACES, st.sampled_from(sorted(SHAPES)), st.booleans())
@example(DIGITS, ["\r"] * 4, "double", True)
@example("0.0E-0", [""] * 4, "double", False)
@example(DIGITS, ["\r"] * 4, "double", False)
def test_whitespace_around_a_number_hides_none_of_its_digits(
    number: str, spaces: list[str], kind: str, is_fast: bool
) -> None:
    before_colon, after_colon, before, after = spaces
    value = SHAPES[kind] % f"{before}{number}{after}"
    line = f'{{"f"{before_colon}:{after_colon}{value}}}'
    rows = JsonRows(Unchecked(declared_schema({"f": kind})))
    if not is_fast:
        rows._columns_reader = Slow()
    table, error = rows.decode("input", LineBlock(1, line.encode(), 0))
    found = json.dumps(table.column("f").to_pylist()) if table.num_rows else None
    exact = json.loads(SHAPES[kind] % number, parse_float=Decimal)
    while isinstance(exact, dict | list):
        (exact,) = exact.values() if isinstance(exact, dict) else exact
    if is_exact_decimal(exact, float(exact)):
        assert found == json.dumps([json.loads(value)])
    else:
        assert (found, "does not fit a double" in str(error)) == (None, True)
