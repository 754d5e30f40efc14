"""Offsets in Spark's checkpoints, as they were first written."""

from __future__ import annotations

import json
from pathlib import Path

from headwater.buffer.queue.contract import QueuePosition
from headwater.spark.source.offset import Offset, StreamPartition

HERE = Path(__file__).parent
OFFSET = Offset(
    {
        StreamPartition("orders", 10): QueuePosition(1, 7),
        StreamPartition("orders", 2): QueuePosition(12, 2**53 + 1),
        StreamPartition("bills", 0): QueuePosition(0, 1),
        StreamPartition("orders", 0): QueuePosition(3, 101),
    },
    {
        "orders": "6f1b2c3d-0000-4000-8000-000000000001",
        "bills": "6f1b2c3d-0000-4000-8000-000000000002",
    },
    closed=True,
    query="9c41d0e2000040008000000000000003",
    step=7,
)


def test_an_offset_is_spelled_and_read_as_it_always_was() -> None:
    kept = (HERE / "spark_offset.2.json").read_text().rstrip("\n")
    assert json.dumps(OFFSET.to_json()) == kept
    assert Offset.from_json(json.loads(kept)) == OFFSET
    assert json.dumps(OFFSET.to_json(), sort_keys=True) == kept
