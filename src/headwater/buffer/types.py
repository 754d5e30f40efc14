"""The Arrow types that a stream carries, the mapping of others, and their text in `stream.json`.

Spark reads streams, and they are written to Iceberg, so a stream carries what both support. Types
that differ only in layout, or that fit into a wider one without loss, are mapped; the rest is
refused when it is produced, while the producer can still change it.

| type | carried as |
| --- | --- |
| uint8, uint16, uint32 | int16, int32, int64 |
| float16 | float32 |
| large and view strings and binaries, fixed-size binaries | string, binary |
| large and fixed-size lists | list |
| dictionary | its values |
| date64 | date32 |
| timestamp in s or ms, with any zone | timestamp in µs, in UTC |
| timestamp in s or ms, without a zone | timestamp in µs, without a zone |
| timestamp in ns, of rows | the same in µs, where each is a whole number of them; else refused |
| timestamp in ns, in a schema that is declared | refused |
| uint64, decimal256, time, duration, interval, union, list view, null | refused |

The text of a type is written in one way, and read also with the words of Arrow, Spark and SQL:

    int64    decimal(10, 2)    timestamp[us, UTC]    list<string>    map<string, int64>
    struct<street: string, "house number": int32 not null>

People can read this text in `stream.json`, unlike Arrow's serialised schemas, whose bytes differ
between versions.
"""

from __future__ import annotations

import json
import re
from typing import Final

import pyarrow as pa

from headwater.core.errors import Refused

_CARRIED_AS: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_CARRIED: Final = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    }
)
_ADVICE: Final = {
    "uint64": "cast it to int64, or to decimal(20, 0)",
    "time": "cast it to a string, or to an integer of the unit you mean",
    "duration": "cast it to an integer of the unit you mean",
    "null": "give it a type, or declare the stream's schema: the type of its values is unknown",
    # Arrow's cast to a list makes invalid offsets.
    "list_view": "make a list of it, as in pa.array(column.to_pylist())",
    "large_list_view": "make a list of it, as in pa.array(column.to_pylist())",
    "decimal256": "cast it to decimal128 (at most 38 digits)",
}
# Deeper nesting is a mistake, and would overflow recursion elsewhere.
_MAX_DEPTH: Final = 16


def carried_type(
    kind: pa.DataType, column: str, *, of_rows: bool = False, depth: int = 0
) -> pa.DataType:
    """The type in which a column of type `kind` is carried; `Refused` if there is none.

    `of_rows`: nanoseconds, which pandas uses, become microseconds; the cast then refuses values
    that would lose digits. In a declared schema nanoseconds are refused.
    """
    if depth > _MAX_DEPTH:
        raise Refused(f"column {column!r} is nested more than {_MAX_DEPTH} levels deep")
    if kind in _CARRIED:
        return kind
    if kind in _CARRIED_AS:
        return _CARRIED_AS[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.bit_width <= 128:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns" and not of_rows:
            raise Refused(
                f"column {column!r} is {kind}: neither Spark nor Iceberg supports nanoseconds; "
                "cast it to microseconds (pc.cast(column, pa.timestamp('us', 'UTC'), safe=False))"
            )
        return pa.timestamp("us", "UTC" if kind.tz else None)

    def inner(part: pa.DataType, name: str = "") -> pa.DataType:
        return carried_type(part, f"{column}{name}", of_rows=of_rows, depth=depth + 1)

    if pa.types.is_dictionary(kind):
        return inner(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = inner(kind.value_type, ".element")
        return pa.list_(pa.field("element", item, kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_type, ".key"), inner(kind.item_type, ".value"))
    if pa.types.is_struct(kind):
        fields = [
            pa.field(field.name, inner(field.type, f".{field.name}"), field.nullable)
            for field in kind
        ]
        return pa.struct(fields)
    advice = next((text for name, text in _ADVICE.items() if str(kind).startswith(name)), None)
    cure = advice or "cast it to a type that both support"
    raise Refused(f"column {column!r} is {kind}, which Spark or Iceberg does not support: {cure}")


def carried_schema(schema: pa.Schema, *, of_rows: bool = False) -> pa.Schema:
    return pa.schema(
        [
            pa.field(
                field.name, carried_type(field.type, field.name, of_rows=of_rows), field.nullable
            )
            for field in schema
        ]
    )


def check_names(place: str, names: list[str]) -> None:
    """Refuse names of columns or fields that Spark could not use or tell apart."""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise Refused(f"a column{place} has no name: rename it; Spark needs one")
        before = seen.get(name.lower())
        if before == name:
            raise Refused(f"column {name!r}{place} appears more than once")
        if before is not None:
            raise Refused(
                f"columns {before!r} and {name!r}{place} differ only in case; Spark does not tell "
                "them apart: rename one"
            )
        seen[name.lower()] = name


def check_nested(place: str, kind: pa.DataType) -> None:
    """Refuse nested types that Spark does not support."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise Refused(
                f"column {place!r} is a struct without fields, which cannot be recorded: give it a "
                "field, or declare the stream's schema"
            )
        check_names(f" of {place!r}", [field.name for field in kind])
        for field in kind:
            check_nested(f"{place}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        check_nested(f"{place}.element", kind.value_type)
    elif pa.types.is_map(kind):
        check_nested(f"{place}.key", kind.key_type)
        check_nested(f"{place}.value", kind.item_type)
    elif pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        raise Refused(f"column {place!r} is {kind}: its scale must be from 0 to its precision")


def is_untyped(kind: pa.DataType) -> bool:
    """Whether the type has a part without a type: `[]`, `{}`, a null."""
    if pa.types.is_nested(kind):
        parts = [kind.field(place).type for place in range(kind.num_fields)]
        return not parts or any(map(is_untyped, parts))
    return bool(pa.types.is_null(kind))


_PLAIN: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
}
_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}
_ALIASES: Final = {
    "boolean": "bool",
    "byte": "int8",
    "tinyint": "int8",
    "short": "int16",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "long": "int64",
    "bigint": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "bytes": "binary",
    "date32": "date",
    # Spark's timestamp has a zone and Iceberg's has none; Spark's type without a zone is ntz.
    "timestamp": "timestamp[us, UTC]",
    "timestamp_ltz": "timestamp[us, UTC]",
    "timestamp_ntz": "timestamp[us]",
}
_TIMESTAMP: Final = re.compile(
    r"timestamp\[\s*(s|ms|us|ns)\s*(?:,\s*(?:tz\s*=\s*)?([^\]]+?)\s*)?\]"
)
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<word>[^\W\d]\w*(?:\[[^\]]*\])?)"""
    r"""|(?P<number>-?\d+)|(?P<mark>[<>(),:]))"""
)
_BARE_NAME: Final = re.compile(r"[^\W\d]\w*")
_TEXT_MAX: Final = 100_000
_KNOWN: Final = "list<…>, map<…, …>, struct<…: …>, decimal(…, …)"


def type_text(kind: pa.DataType) -> str:
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"list<{field_text(kind.value_field)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        fields = ", ".join(f"{_name_text(field.name)}: {field_text(field)}" for field in kind)
        return f"struct<{fields}>"
    raise Refused(f"{kind} is not a type that a stream carries")


def field_text(field: pa.Field) -> str:
    """The type of a column, and whether it may be null."""
    return type_text(field.type) + ("" if field.nullable else " not null")


def parse_field(name: str, text: str) -> pa.Field:
    """A column from its name and the text of its type, in the type in which it is carried."""
    if len(text) > _TEXT_MAX:
        raise Refused(f"column {name!r}: a type of {len(text):,} characters")
    parser = _Parser(name, text)
    kind, is_nullable = parser.nullable_type(0)
    parser.end()
    return pa.field(name, carried_type(kind, name), is_nullable)


def _name_text(name: str) -> str:
    return name if _BARE_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


class _Parser:
    """Reads one type from left to right."""

    def __init__(self, column: str, text: str) -> None:
        self._column = column
        self._text = text
        self._at = 0

    def nullable_type(self, depth: int) -> tuple[pa.DataType, bool]:
        kind = self._type(depth)
        if self._peek() == "not":
            self._next()
            if self._next().lower() != "null":
                raise self._wrong("'not' is followed by 'null'")
            return kind, False
        return kind, True

    def end(self) -> None:
        if self._text[self._at :].strip():
            raise self._wrong(f"{self._text[self._at :].strip()!r} is left over")

    def _type(self, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise self._wrong(f"nested more than {_MAX_DEPTH} levels deep")
        word = self._next()
        lower = word.lower()
        if lower in ("list", "array") and self._peek() == "<":
            return self._list(depth + 1)
        if lower == "map" and self._peek() == "<":
            return self._map(depth + 1)
        if lower == "struct" and self._peek() == "<":
            return self._struct(depth + 1)
        if lower in ("decimal", "decimal128", "numeric") and self._peek() == "(":
            return self._decimal()
        return self._plain(word)

    def _list(self, depth: int) -> pa.DataType:
        self._expect("<")
        before = self._at
        # Arrow prints the name of the element.
        if self._next() not in ("element", "item") or self._peek() != ":":
            self._at = before
        else:
            self._expect(":")
        kind, is_nullable = self.nullable_type(depth)
        self._expect(">")
        return pa.list_(pa.field("element", kind, is_nullable))

    def _map(self, depth: int) -> pa.DataType:
        self._expect("<")
        key = self._type(depth)
        self._expect(",")
        item = self._type(depth)
        self._expect(">")
        return pa.map_(key, item)

    def _struct(self, depth: int) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while not fields or self._peek() == ",":
            if fields:
                self._expect(",")
            name = self._name()
            self._expect(":")
            fields.append(pa.field(name, *self.nullable_type(depth)))
        self._expect(">")
        return pa.struct(fields)

    def _name(self) -> str:
        token = self._next()
        if token in tuple("<>(),:"):
            raise self._wrong(f"a name is expected, not {token!r}")
        try:
            return str(json.loads(token)) if token.startswith('"') else token
        except ValueError:
            raise self._wrong(f"{token} is not a name") from None

    def _decimal(self) -> pa.DataType:
        self._expect("(")
        precision = self._number()
        scale = 0
        if self._peek() == ",":
            self._expect(",")
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._wrong("a decimal has 1 to 38 digits, and no more of them after the point")
        return pa.decimal128(precision, scale)

    def _plain(self, word: str) -> pa.DataType:
        lower = word.lower()
        stamp = _TIMESTAMP.fullmatch(word)
        if stamp:
            return pa.timestamp(stamp[1], "UTC" if stamp[2] else None)
        lower = _ALIASES.get(lower, lower)
        if lower in _PLAIN:
            return _PLAIN[lower]
        try:
            return pa.type_for_alias(lower)
        except ValueError:
            raise self._wrong(
                f"{word!r} is not known; known are {', '.join(_PLAIN)}, {_KNOWN}"
            ) from None

    def _number(self) -> int:
        token = self._next()
        try:
            return int(token)
        except ValueError:
            raise self._wrong(f"a number is expected, not {token!r}") from None

    def _expect(self, mark: str) -> None:
        token = self._next()
        if token != mark:
            raise self._wrong(f"{mark!r} is expected, not {token!r}")

    def _peek(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        return token[0].strip() if token else ""

    def _next(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        if not token:
            rest = self._text[self._at :].strip()
            raise self._wrong(f"{rest[:20]!r} is not understood" if rest else "it ends too early")
        self._at = token.end()
        return token[0].strip()

    def _wrong(self, why: str) -> Refused:
        return Refused(f"column {self._column!r}: the type {self._text!r}: {why}")
