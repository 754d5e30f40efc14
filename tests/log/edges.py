"""Columns at the edges of the types that a log carries: whoever keeps records has to keep these."""

from __future__ import annotations

import decimal
import math
import struct

import pyarrow as pa

ENDS = [-(2**63), 2**63 - 1, 0, None]
EDGES = {
    "integers": pa.array([-(2**63), 2**63 - 1, 0, None]),
    "days": pa.array([-(2**31), 2**31 - 1, None], pa.int32()).view(pa.date32()),
    "moments": pa.array([-(2**63), 2**63 - 1, None], pa.int64()).view(pa.timestamp("us", "UTC")),
    "floats": pa.array([math.inf, -math.inf, -0.0, 0.0, 5e-324, None]),
    "digits": pa.array([decimal.Decimal(10**38 - 1), decimal.Decimal(1 - 10**38), None]),
    "nothing": pa.nulls(3, pa.string()),
    "empty": pa.array(["", None, ""]),
    "empty lists": pa.array([[], None, [None]], pa.list_(pa.field("element", pa.int8()))),
    "a key twice": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())),
    "a null within": pa.array(
        [{"x": None}, None], pa.struct([("x", pa.struct([("y", pa.int8())]))])
    ),
    "nothing below a null": pa.array(
        [None, {"x": {"y": [1]}}],
        pa.struct(
            [
                pa.field(
                    "x",
                    pa.struct([pa.field("y", pa.list_(pa.field("item", pa.int8())), False)]),
                    nullable=False,
                )
            ]
        ),
    ),
    "another name of elements": pa.array([[1]], pa.list_(pa.field("item", pa.int32()))),
    "long": pa.array(["x" * 3_000_000, "y"]),
    "long in a view": pa.array(["x" * 3_000_000, None, "y"], pa.string_view()),
    "halves": pa.array([math.inf, -0.0, 5.96e-8, None], pa.float16()),
    "seconds": pa.array(ENDS, pa.int64()).view(pa.timestamp("s", "Asia/Tokyo")),
    "nanoseconds": pa.array(ENDS, pa.int64()).view(pa.timestamp("ns", "Asia/Tokyo")),
    "durations": pa.array(ENDS, pa.int64()).view(pa.duration("s")),
    "days in ms": pa.array([*ENDS, 1], pa.int64()).view(pa.date64()),
    "times of no day": pa.array([*ENDS, -1], pa.int64()).view(pa.time64("ns")),
    "seconds of no day": pa.array([-1, 2**31 - 1, None], pa.int32()).view(pa.time32("s")),
    "scale beyond the precision": pa.Array.from_buffers(
        pa.decimal128(2, 4), 1, [None, pa.py_buffer((17).to_bytes(16, "little"))]
    ),
    "scale below 0": pa.Array.from_buffers(
        pa.decimal32(3, -2), 2, [None, pa.py_buffer(struct.pack("<2i", 999, -1))]
    ),
    "76 digits": pa.array([decimal.Decimal(10**76 - 1), None], pa.decimal256(76, 0)),
    "no fixed lists": pa.array([None, None], pa.list_(pa.int8(), 2)),
    "fixed lists of no elements": pa.array([[], None], pa.list_(pa.int8(), 0)),
    "fixed lists in fixed lists": pa.array(
        [[[1, 2], None], None], pa.list_(pa.list_(pa.uint8(), 2), 2)
    ),
    "no fixed lists of views": pa.array(
        [[("a", None)], None], pa.map_(pa.string(), pa.list_(pa.string_view(), 2))
    ),
    "nothing below a null, cast": pa.array(
        [None, {"x": ["a"]}],
        pa.struct([pa.field("x", pa.large_list(pa.field("item", pa.string_view(), False)), False)]),
    ),
    "nulls of no type": pa.nulls(2),
    "sorted map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8(), keys_sorted=True)),
    "map without nulls": pa.array(
        [[("a", 1)]], pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False))
    ),
}
