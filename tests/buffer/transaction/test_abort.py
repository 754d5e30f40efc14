"""Aborting: what was uploaded goes, and what was committed stays."""

from __future__ import annotations

import pytest

from headwater.buffer.stream import Stream
from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.holds import HoldLost
from headwater.buffer.transaction.record import (
    ApplicationRecord,
    CommitAttempt,
    application_register,
    read_application,
)
from headwater.core.errors import OutcomeUnknown
from headwater.store import Version
from headwater.store.backend import Condition, MemoryBackend, PreconditionFailed
from headwater.store.objects import Buffer
from tests.buffer.transaction.given import (
    a_stream,
    micro_batch,
    upload,
    uploads_left,
    values_of,
    write,
)
from tests.buffer.transaction.interrupted import Died, Interrupted
from tests.store.scripted import virtual


async def record_of(stream: Stream, attempt: CommitAttempt) -> ApplicationRecord:
    return await read_application(application_register(stream, attempt.application))


@virtual
async def test_an_abort_deletes_what_was_uploaded_and_the_commit_can_not_come_later() -> None:
    stream, attempt = await a_stream(), micro_batch(0)
    done = [await upload(stream, attempt, 0, {0: ["a"], 1: ["b"]})]
    assert await TransactionCommitter(stream, attempt).abort(done) is True
    assert await uploads_left(stream) == 0
    with pytest.raises(HoldLost, match="run it again"):
        await TransactionCommitter(stream, attempt).commit(done)
    assert await values_of(stream) == []


@virtual
async def test_an_abort_after_a_commit_whose_answer_was_lost_deletes_nothing() -> None:
    stream, attempt = await a_stream(), micro_batch(0)
    done = [await upload(stream, attempt, 0, {0: ["a"]})]
    await TransactionCommitter(stream, attempt).commit(done)
    assert await TransactionCommitter(stream, attempt).abort(done) is False
    assert await values_of(stream) == ["a"]


@virtual
async def test_an_abort_finishes_what_was_committed_and_not_appended() -> None:
    backend = Interrupted()
    stream, attempt = await a_stream(backend), micro_batch(0)
    done = [await upload(stream, attempt, 0, {0: ["a"], 1: ["b"]})]
    backend.fails, backend.lands = {"chunks": 1}, False
    with pytest.raises(Died):
        await TransactionCommitter(stream, attempt).commit(done)
    backend.revive()
    assert (await record_of(stream, attempt)).is_appending
    assert await TransactionCommitter(stream, attempt).abort(done) is False
    assert (await values_of(stream, 0), await values_of(stream, 1)) == (["a"], ["b"])


@virtual
async def test_an_abort_keeps_a_commit_under_way_from_landing_late() -> None:
    class Late(MemoryBackend):
        """Carries out one write of a record when it is told to, long after it broke off."""

        held: tuple[str, bytes, Condition] | None = None
        breaks = False

        async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
            if self.breaks and "/query-" in key:
                self.held = (key, bytes(data), condition)
                raise OutcomeUnknown("the connection broke")
            return await super().put(key, data, condition)

    backend = Late(versions_by_content=True)
    stream, attempt = await a_stream(backend), micro_batch(1)
    await write(stream, micro_batch(0), {0: ["before"]})
    done = [await upload(stream, attempt, 0, {0: ["a"]})]
    backend.breaks = True
    found = await read_application(application_register(stream, attempt.application))
    with pytest.raises(OutcomeUnknown):
        # Without its retries, as when the driver is told to stop right then.
        await TransactionCommitter(stream, attempt)._change(found, done, done[0].uploads)
    backend.breaks = False
    await TransactionCommitter(stream, attempt).abort(done)
    assert backend.held is not None
    with pytest.raises(PreconditionFailed):
        await backend.put(*backend.held)
    assert not (await record_of(stream, attempt)).has(attempt)


@virtual
async def test_an_abort_leaves_it_to_the_collector_where_the_record_no_longer_tells() -> None:
    stream = await a_stream()
    job = CommitAttempt.of_job("job")
    done = [await upload(stream, job, 0, {0: ["a"]})]
    await TransactionCommitter(stream, job).commit(done)
    register = application_register(stream, job.application)
    others = tuple(f"other {number}" for number in range(64))
    await register.update(
        lambda now: ApplicationRecord("jobs", job.name, 99, "other", recent=others)
    )
    await TransactionCommitter(stream, job).abort(done)
    assert await values_of(stream) == ["a"]
