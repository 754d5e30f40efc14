"""`headwater stream truncate` gives up what comes before an offset, and says what it did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from headwater.blocking import delete_stream
from headwater.buffer.producer import Producer
from headwater.buffer.stream import Stream, create_stream
from headwater.cli import stream_records, terminal
from headwater.core.errors import Unavailable
from headwater.store import open_store
from tests.cli.conftest import Invoke
from tests.cli.stream.given import done, error_of


@pytest.fixture
def filled(url: str) -> str:
    fill(url)
    return url


def fill(url: str) -> None:
    """Two partitions with five records each, in batches of 2, 2 and 1."""

    async def produce() -> None:
        async with open_store(url) as store:
            await create_stream(store, "orders", partitions=2)
            async with Producer(store, "orders", linger_ms=0) as producer:
                for partition in range(2):
                    for values in ((b"1", b"2"), (b"3", b"4"), (b"5",)):
                        await (await producer.produce(list(values), partition=partition))

    asyncio.run(produce())


def read(invoke: Invoke, url: str, partition: int) -> str:
    return done(invoke("read", url, "orders", f"--partition={partition}"))


def test_one_partition(invoke: Invoke, filled: str) -> None:
    command = ("stream", "truncate", filled, "orders", "--before=3", "--partition=1", "--yes")
    assert done(invoke(*command)) == (
        "✓ partition 1: the log begins at LSN 3, 2 records were deleted\n"
    )
    assert read(invoke, filled, 1) == "3\n4\n5\n"
    assert read(invoke, filled, 0) == "1\n2\n3\n4\n5\n"
    assert done(invoke(*command)) == "– partition 1: nothing to delete, the log begins at LSN 3\n"
    assert "is not retained" in error_of(
        invoke("read", filled, "orders", "--partition=1", "--start=1")
    )


def test_several_partitions_each_at_its_own_offset(invoke: Invoke, filled: str) -> None:
    result = invoke("stream", "truncate", filled, "orders", "--before=0=4,1=latest", "--yes")
    assert done(result) == (
        "✓ partition 0: the log begins at LSN 3, 2 records were deleted; LSNs 3 to 3 stay, in "
        "one batch with 4\n"
        "✓ partition 1: the log begins at LSN 6, 5 records were deleted\n"
    )
    assert (read(invoke, filled, 0), read(invoke, filled, 1)) == ("3\n4\n5\n", "")


def test_an_offset_alone_is_meant_in_each_partition(invoke: Invoke, filled: str) -> None:
    result = invoke("stream", "truncate", filled, "orders", "--before=5", "--yes", "--json")
    expected = {"before_lsn": 5, "start_lsn": 5, "records": 4, "failed": 0, "left": 0}
    assert json.loads(done(result)) == {
        "stream": "orders",
        "partitions": [{"partition": number, **expected} for number in range(2)],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--before=7",), "partition 0: LSN 7 is beyond the end, which is 6"),
        (("--before=0=6,1=99",), "partition 1: LSN 99 is beyond the end"),
        (("--before=0=6,3=1",), "has partitions 0 to 1"),
        (("--before=3", "--partition=2"), "has partitions 0 to 1, not 2"),
        (("--before=0=1,0=2",), "given twice"),
        (("--before=0=",), "is not PARTITION=OFFSET"),
        (("--before=x=1",), "is not PARTITION=OFFSET"),
        (("--before=0=1", "--partition=0"), "leave --partition out"),
        (("--before=soon",), "'soon' is not a position"),
        (("--before=0",), "first record of a partition has LSN 1"),
        ((), "--before"),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    invoke: Invoke, filled: str, arguments: tuple[str, ...], said: str
) -> None:
    result = invoke("stream", "truncate", filled, "orders", *arguments, "--yes", COLUMNS="200")
    assert said in error_of(result)
    assert (read(invoke, filled, 0), read(invoke, filled, 1)) == ("1\n2\n3\n4\n5\n",) * 2


def test_what_the_required_group_has_not_processed_takes_force_and_is_named(
    invoke: Invoke, filled: str
) -> None:
    done(invoke("stream", "alter", filled, "orders", "--required-group=billing"))
    command = ("stream", "truncate", filled, "orders", "--before=1=3")
    refused = error_of(invoke(*command, "--yes"))
    assert "required group billing has not processed 2 of these records" in refused
    unasked = error_of(invoke(*command, "--force"))
    assert "the required group billing has not processed 2 of them, and would lose" in unasked
    assert read(invoke, filled, 1) == "1\n2\n3\n4\n5\n"
    done(invoke(*command, "--force", "--yes"))
    assert read(invoke, filled, 1) == "3\n4\n5\n"


def test_it_asks_how_many_records_are_to_go(
    invoke: Invoke, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("stream", "truncate", filled, "orders", "--before=1=3")
    refused = error_of(invoke(*command))
    assert "2 records in 1 partitions of stream orders" in refused
    assert "--yes" in refused
    monkeypatch.setattr(terminal, "is_interactive", lambda: True)
    asked: list[str] = []
    monkeypatch.setattr(
        stream_records, "confirm", lambda question, *, unasked: asked.append(question)
    )
    done(invoke(*command))
    assert asked[0].startswith("Permanently delete 2 records in 1 partitions of stream orders?")
    done(invoke(*command))  # nothing is left to ask about
    assert len(asked) == 1


def test_another_stream_of_the_name_is_not_what_was_confirmed(
    invoke: Invoke, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(question: str, *, unasked: str) -> None:
        delete_stream(filled, "orders")
        fill(filled)

    monkeypatch.setattr(terminal, "is_interactive", lambda: True)
    monkeypatch.setattr(stream_records, "confirm", confirm)
    said = error_of(invoke("stream", "truncate", filled, "orders", "--before=latest"))
    assert "was deleted and created again" in said
    assert read(invoke, filled, 0) == read(invoke, filled, 1) == "1\n2\n3\n4\n5\n"


def test_a_partition_that_fails_is_named_and_the_others_are_done(
    invoke: Invoke, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwater.buffer import truncation

    whole = truncation._truncate

    async def fails(
        stream: Stream, plan: truncation.TruncationPlan, *, force: bool
    ) -> truncation.Truncated:
        if plan.partition == 0:
            raise Unavailable("no route to host")
        return await whole(stream, plan, force=force)

    monkeypatch.setattr(truncation, "_truncate", fails)
    result = invoke("stream", "truncate", filled, "orders", "--before=3", "--yes")
    assert result.exit_code == 1
    assert "✗ partition 0: Unavailable: no route to host" in result.stdout
    assert "✓ partition 1: the log begins at LSN 3" in result.stdout
    monkeypatch.undo()
    found: Mapping[str, object] = json.loads(
        done(invoke("stream", "truncate", filled, "orders", "--before=3", "--yes", "--json"))
    )
    assert [one["start_lsn"] for one in found["partitions"]] == [3, 3]  # type: ignore[attr-defined]


def test_a_published_stream_and_one_that_is_not_there_are_refused(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "published", "--format=v1"))
    command = ("stream", "truncate", url)
    assert "published v1 format" in error_of(
        invoke(*command, "published", "--before=latest", "--yes")
    )
    assert "'nowhere'" in error_of(invoke(*command, "nowhere", "--before=latest", "--yes"))
