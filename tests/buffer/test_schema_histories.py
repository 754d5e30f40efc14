"""Histories of what a stream carries: a sample, and proof that they can fail.

Each planted bug is a mistake somebody would make: a cast in the place of a refusal, a record of the
columns that comes after their batch, a look at the queue in the place of a write on top of it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.stream import Stream, fitting, handle, schema
from headwater.buffer.stream.config import StreamRegister
from headwater.buffer.stream.fitting import SchemaFitter
from headwater.core import runtime
from tests.planted import expect_noticed
from tests.torture.schema_scenarios import SCHEMAS, schema_history
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 100
FIRST = {"replaced-without-a-fence": 40}
"""Where not to begin at 0, since most histories are blind to the bug: only to be done sooner."""


def casts(self: SchemaFitter, records: pa.RecordBatch, cast: Any) -> pa.RecordBatch:
    """Makes of a value whatever the type of the first batch can be made of it."""

    def unsafely(column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column.cast(field.type, safe=False)
        except pa.ArrowException:
            return pa.nulls(len(column), field.type)

    return _in_columns(self, records, unsafely)


_in_columns = SchemaFitter._in_columns


async def records_later(self: Stream, records: pa.Schema, *, is_fresh: bool = False) -> Stream:
    """Goes on with what it thinks of, and writes it down beside."""
    config = schema.taking_in(self.config, records, added_ms=0)

    async def write() -> None:
        await runtime.sleep(1.0)
        await StreamRegister(self.store, self.name).update_live(
            self.id, lambda now: schema.taking_in(now, records, added_ms=0)
        )

    runtime.spawn(write(), name="records later")
    return self.with_config(config)


async def only_looks(store: Any, config: Any, partition: int, floor: int, check: Any) -> None:
    """Checks what is there, and lets whoever appends go on."""
    state = await Stream(store, config).queue_reader(partition).state()
    await check(state.next_sequence)


def takes_the_latest(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Records the type that came last, whether or not it holds what came before."""
    return other


BUGS: dict[str, tuple[Replacement, ...]] = {
    "cast-to-the-first-type": (
        (fitting, "accepts", lambda given, wanted: True),
        (SchemaFitter, "_in_columns", casts),
    ),
    "recorded-after-the-append": ((Stream, "recording", records_later),),
    "replaced-without-a-fence": ((handle, "raise_schema_floor", only_looks),),
    "the-latest-type-wins": ((schema, "common_type", takes_the_latest),),
}


@pytest.mark.parametrize("scenario", [SCHEMAS], ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


def test_the_same_seed_gives_the_same_history() -> None:
    assert schema_history(1) == schema_history(1)


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str) -> None:
    expect_noticed(
        lambda seed: schema_history(seed, *BUGS[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=FIRST.get(bug, 0),
    )
