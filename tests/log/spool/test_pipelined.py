"""Appends that are handed in without waiting for each other, and the mistakes one would make."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.core.limits import DECODE_INLINE_BYTES
from headwater.log import PreparedAppend, Spool, prepare_append
from headwater.log.spool import codec
from headwater.log.spool.commit import Appended, CallOrder
from headwater.log.spool.spool import _pending
from tests.planted import expect_noticed
from tests.torture.pipeline_scenarios import PIPELINED, pipelined_history


async def enters_when_encoded(
    self: Spool,
    records: pa.RecordBatch | PreparedAppend,
    *,
    term: int,
    first_lsn: int | None = None,
) -> Appended:
    """Gets in line when it is ready, and not when it was called."""
    draft = records
    if not isinstance(draft, PreparedAppend):
        is_small = draft.nbytes <= DECODE_INLINE_BYTES
        draft = (
            prepare_append(draft) if is_small else await runtime.run_blocking(prepare_append, draft)
        )
    return await self._commit.submit(_pending(draft, term, first_lsn, None))


def own_columns_apart(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Begins a segment for every set of the stream's own columns."""
    own = [{name for name in one.names if not name.startswith("_")} for one in (schema, other)]
    return None if own[0] != own[1] else _merged(schema, other)


_merged = codec.merge_schemas

PLANTED: dict[str, tuple[Any, str, Any]] = {
    "small-overtakes-large": (Spool, "append", enters_when_encoded),
    "small-does-not-wait": (CallOrder, "is_free", lambda self: True),
    "refused-draft-is-used-up": (PreparedAppend, "give_back", lambda self, bodies: None),
    "segment-for-every-column-set": (codec, "merge_schemas", own_columns_apart),
}


def test_no_history_of_pipelined_appends_breaks_a_promise() -> None:
    PIPELINED.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    owner, name, instead = PLANTED[bug]
    with mock.patch.object(owner, name, instead):
        expect_noticed(pipelined_history, within=60)
