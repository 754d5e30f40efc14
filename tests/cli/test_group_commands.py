"""`headwater group …`: the groups of a stream, seen, moved and deleted from outside."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from headwater.buffer.group import GroupRegister
from headwater.buffer.layout import group_record_key
from headwater.buffer.stream import open_stream
from headwater.core.limits import GROUP_QUERY_SEEN_S
from headwater.store import Store, open_store
from headwater.store.claims import Claim, ClaimState, ClaimTable, Member
from tests.cli.conftest import Invoke


@pytest.fixture
def url(tmp_path: Path, invoke: Invoke) -> str:
    """A stream of two partitions with three records each, a query that runs and a stopped one."""
    address = f"file://{tmp_path}/store"
    lines = tmp_path / "lines"
    lines.write_text("a\nb\nc\n")
    assert invoke("stream", "create", address, "orders", "--partitions", "2").exit_code == 0
    for partition in ("0", "1"):
        sent = invoke("produce", address, "orders", str(lines), "--partition", partition)
        assert sent.exit_code == 0, sent.output

    async def run() -> None:
        async with open_store(address) as store:
            running = await group(store, "etl")
            await running.begin("query", {0: 1, 1: 1})
            epoch = await running.start_query("q1", is_new=True)
            await running.take(0, epoch)
            await running.acknowledge(0, epoch, 3)
            stopped = await group(store, "audit")
            await stopped.begin("consumers", {0: 2, 1: 4})
            member = Member(1, 60.0, 1, "host-a", 0)
            table = ClaimTable({"m1": member}, {"1": Claim("m1", 1)}, 1)
            await stopped.share(lambda _: ClaimState(1, table))

    asyncio.run(run())
    return address


async def group(store: Store, name: str) -> GroupRegister:
    return GroupRegister(await open_stream(store, "orders"), name)


def positions(url: str, name: str) -> dict[int, int]:
    async def run() -> dict[int, int]:
        async with open_store(url) as store:
            return (await (await group(store, name)).positions())[1]

    return asyncio.run(run())


def test_list_shows_the_groups_and_whether_they_run(invoke: Invoke, url: str) -> None:
    result = invoke("group", "list", url, "orders", COLUMNS="200")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
    assert "query" in lines["etl"]
    assert "running" in lines["etl"]
    assert "consumers" in lines["audit"]
    assert "stopped" in lines["audit"]
    found = json.loads(invoke("group", "list", url, "orders", "--json").stdout)
    assert [(one["group"], one["readers"]) for one in found] == [("audit", ["m1"]), ("etl", ["q1"])]


def test_list_without_groups_says_so(invoke: Invoke, url: str) -> None:
    assert invoke("stream", "create", url, "other").exit_code == 0
    result = invoke("group", "list", url, "other")
    assert result.exit_code == 1
    assert "stream other has no groups" in result.stderr


def test_list_says_which_group_cannot_be_read(invoke: Invoke, url: str) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            stream = await open_stream(store, "orders")
            await store.put(group_record_key("orders", stream.id, "bad"), b"{}\n")

    asyncio.run(run())
    result = invoke("group", "list", url, "orders")
    assert result.exit_code == 1
    assert "group bad: " in result.stdout
    assert "etl" in result.stdout


def test_describe_shows_position_end_and_lag(invoke: Invoke, url: str) -> None:
    result = invoke("group", "describe", url, "orders", "audit", COLUMNS="200")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()[:2] in ("0 ", "1 ")]
    assert [(row[0], row[1], row[2], row[3], row[-1]) for row in rows] == [
        ("0", "2", "4", "2", "-"),
        ("1", "4", "4", "0", "m1"),
    ]
    found = json.loads(invoke("group", "describe", url, "orders", "etl", "--json").stdout)
    assert [one["lag"]["records"] for one in found["partitions"]] == [1, 3]
    assert (found["is_running"], found["record"]["epoch"]) == (True, 1)


def test_describe_says_what_retention_took_from_a_group(invoke: Invoke, url: str) -> None:
    truncated = invoke("stream", "truncate", url, "orders", "--before", "latest", "--yes")
    assert truncated.exit_code == 0, truncated.output
    result = invoke("group", "describe", url, "orders", "audit")
    assert result.exit_code == 1
    assert "partition 0: retention deleted 2 records" in result.stdout


def test_describe_says_why_a_lag_is_unknown(invoke: Invoke, url: str) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            await (await group(store, "audit")).reset({0: 99, 1: 1})

    asyncio.run(run())
    result = invoke("group", "describe", url, "orders", "audit")
    assert result.exit_code == 1
    assert "the group is at LSN 99" in result.stdout.replace("\n", " ")


@pytest.mark.parametrize("verb", ["describe", "delete", "reset"])
def test_an_unknown_group_is_an_error(invoke: Invoke, url: str, verb: str) -> None:
    more = {"delete": ("--yes",), "reset": ("--to-latest", "--execute")}.get(verb, ())
    result = invoke("group", verb, url, "orders", "nope", *more)
    assert result.exit_code == 2
    assert f"headwater group list {url} orders" in result.stderr


def test_a_reset_is_a_plan_until_it_is_executed(invoke: Invoke, url: str) -> None:
    planned = invoke("group", "reset", url, "orders", "audit", "--to-earliest")
    assert planned.exit_code == 0, planned.output
    assert "nothing was changed" in planned.stdout
    assert "--execute" in planned.stdout
    assert positions(url, "audit") == {0: 2, 1: 4}
    done = invoke("group", "reset", url, "orders", "audit", "--to-earliest", "--execute")
    assert done.exit_code == 0, done.output
    assert "reset group audit" in done.stdout
    assert positions(url, "audit") == {0: 1, 1: 1}


@pytest.mark.parametrize(
    ("target", "after"),
    [
        (("--to-latest",), {0: 4, 1: 4}),
        (("--to-offset", "3"), {0: 3, 1: 3}),
        (("--to-timestamp", "2001-01-01"), {0: 1, 1: 1}),
        (("--to-timestamp", "2999-01-01T00:00:00Z"), {0: 4, 1: 4}),
        (("--to-offset", "1", "--partition", "1"), {0: 2, 1: 1}),
        (("--to-offset", "1", "--partition", "1", "--partition", "0"), {0: 1, 1: 1}),
    ],
)
def test_a_reset_goes_where_it_should(
    invoke: Invoke, url: str, target: tuple[str, ...], after: dict[int, int]
) -> None:
    result = invoke("group", "reset", url, "orders", "audit", *target, "--execute", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["is_done"]
    assert positions(url, "audit") == after


def test_a_running_group_is_reset_and_deleted_only_by_force(invoke: Invoke, url: str) -> None:
    planned = invoke("group", "reset", url, "orders", "etl", "--to-latest")
    assert planned.exit_code == 0
    assert "the group runs" in planned.stdout
    refused = invoke("group", "reset", url, "orders", "etl", "--to-latest", "--execute")
    assert refused.exit_code == 2
    assert "is running" in refused.stderr
    assert invoke("group", "delete", url, "orders", "etl", "--yes").exit_code == 2
    assert positions(url, "etl") == {0: 3, 1: 1}
    forced = invoke("group", "reset", url, "orders", "etl", "--to-latest", "--execute", "--force")
    assert forced.exit_code == 0, forced.output
    assert positions(url, "etl") == {0: 4, 1: 4}
    assert GROUP_QUERY_SEEN_S > 60, "this test takes less"


@pytest.mark.parametrize(
    "targets",
    [(), ("--to-latest", "--to-earliest"), ("--to-offset", "1", "--to-timestamp", "2001")],
)
def test_a_reset_needs_one_target(invoke: Invoke, url: str, targets: tuple[str, ...]) -> None:
    result = invoke("group", "reset", url, "orders", "audit", *targets)
    assert result.exit_code == 2
    assert "--to-earliest" in result.stderr


def test_a_target_that_is_not_there_is_refused(invoke: Invoke, url: str) -> None:
    result = invoke("group", "reset", url, "orders", "audit", "--to-offset", "9")
    assert result.exit_code == 2
    assert "LSN 9 does not exist yet" in result.stderr


def test_delete_asks_before_and_forgets_the_group(invoke: Invoke, url: str) -> None:
    refused = invoke("group", "delete", url, "orders", "audit")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert positions(url, "audit") == {0: 2, 1: 4}
    done = invoke("group", "delete", url, "orders", "audit", "--yes")
    assert done.exit_code == 0, done.output
    found = json.loads(invoke("group", "list", url, "orders", "--json").stdout)
    assert [one["group"] for one in found] == ["etl"]
