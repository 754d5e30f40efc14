"""`headwater slot …`: what holds the log, seen and dropped from outside."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import typer

from headwater.buffer.layout import slots_key
from headwater.buffer.stream import open_stream
from headwater.cli.app import app
from headwater.log import SlotRegister
from headwater.log.primary.slot import InvalidationCause
from headwater.log.primary.slot_writer import SlotWriter
from headwater.store import Store, open_store
from tests.cli.conftest import Invoke


@pytest.fixture
def url(tmp_path: Path, invoke: Invoke) -> str:
    """A stream of two partitions; in the second one a leader keeps three slots."""
    address = f"file://{tmp_path}/store"
    assert invoke("stream", "create", address, "orders", "--partitions", "2").exit_code == 0

    async def run() -> None:
        async with open_store(address) as store:
            keeper = await SlotWriter.open(await register(store), leader_epoch=7)
            keeper.slots.create("standby", 120)
            keeper.slots.create("fresh", 120, bootstrapping=True)
            keeper.slots.create("laptop", 3)
            keeper.slots.invalidate("laptop", InvalidationCause.HORIZON)
            await keeper.wait_stored()

    asyncio.run(run())
    return address


async def register(store: Store) -> SlotRegister:
    stream = await open_stream(store, "orders")
    return SlotRegister(store, "orders", 1, stream.id)


async def key(store: Store) -> str:
    return slots_key("orders", 1, (await open_stream(store, "orders")).id)


def names(url: str) -> list[str]:
    async def run() -> list[str]:
        async with open_store(url) as store:
            table = await (await register(store)).read()
            return [] if table is None else [slot.name for slot in table.slots]

    return asyncio.run(run())


def damage(url: str) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            await store.put(await key(store), b"not a register")

    asyncio.run(run())


def test_list_shows_the_slots_of_all_partitions(invoke: Invoke, url: str) -> None:
    result = invoke("slot", "list", url, "orders", COLUMNS="200")
    assert result.exit_code == 0, result.output
    lines = {line.split()[1]: line for line in result.stdout.splitlines()[1:]}
    assert "valid" in lines["standby"]
    assert "120" in lines["standby"]
    assert "bootstrapping" in lines["fresh"]
    assert "lost: horizon" in lines["laptop"]


def test_list_as_json(invoke: Invoke, url: str) -> None:
    rows = json.loads(invoke("slot", "list", url, "orders", "--json").stdout)
    assert [row["slot"] for row in rows] == ["fresh", "laptop", "standby"]
    assert {row["partition"] for row in rows} == {1}
    assert {row["leader_epoch"] for row in rows} == {7}


def test_list_without_slots_says_so(invoke: Invoke, url: str) -> None:
    result = invoke("slot", "list", url, "orders", "--partition", "0")
    assert result.exit_code == 1
    assert "no replication slots" in result.stderr


def test_drop_removes_one_slot_and_leaves_the_others(invoke: Invoke, url: str) -> None:
    result = invoke("slot", "drop", url, "orders", "laptop", "--yes")
    assert result.exit_code == 0, result.output
    assert "dropped the slot laptop of partition 1" in result.stdout
    assert names(url) == ["fresh", "standby"]
    again = invoke("slot", "drop", url, "orders", "laptop", "--yes")
    assert again.exit_code == 1
    assert "no slot laptop" in again.stderr


def test_drop_asks_before(invoke: Invoke, url: str) -> None:
    result = invoke("slot", "drop", url, "orders", "laptop")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert names(url) == ["fresh", "laptop", "standby"]


@pytest.mark.parametrize(("answer", "status"), [(KeyboardInterrupt, 130), (EOFError, 1)])
def test_ctrl_c_at_the_question_ends_the_command_as_anywhere(
    url: str, monkeypatch: pytest.MonkeyPatch, answer: type[BaseException], status: int
) -> None:
    def asked(_: str) -> str:
        raise answer

    monkeypatch.setattr("headwater.cli.terminal.is_interactive", lambda: True)
    monkeypatch.setattr(sys.modules[typer.confirm.__module__], "visible_prompt_func", asked)
    with pytest.raises(SystemExit) as ended:
        app(["slot", "drop", url, "orders", "laptop"])
    assert ended.value.code == status
    assert names(url) == ["fresh", "laptop", "standby"]


def test_damaged_slots_are_shown_and_can_be_begun_anew(invoke: Invoke, url: str) -> None:
    assert invoke("slot", "reset", url, "orders", "--partition", "1", "--yes").exit_code == 2
    assert names(url) == ["fresh", "laptop", "standby"], "what can be read is not written over"
    damage(url)
    listed = invoke("slot", "list", url, "orders")
    assert listed.exit_code == 1
    assert "slot reset" in listed.stdout
    assert invoke("slot", "reset", url, "orders", "--partition", "1", "--yes").exit_code == 0
    assert names(url) == []


def test_slots_that_are_gone_can_be_begun_anew(invoke: Invoke, url: str, tmp_path: Path) -> None:
    for path in tmp_path.glob("store/**/slots.json"):
        path.unlink()
    assert invoke("slot", "reset", url, "orders", "--partition", "1", "--yes").exit_code == 0
    assert names(url) == []


def test_inspect_knows_the_slots(invoke: Invoke, url: str, tmp_path: Path) -> None:
    (path,) = tmp_path.glob("store/**/slots.json")
    result = invoke("inspect", "queue", str(path), "--json")
    assert result.exit_code == 0, result.output
    assert "what the log is kept for" in result.stdout
    assert "standby" in result.stdout


def test_deleting_a_stream_deletes_its_slots(invoke: Invoke, url: str, tmp_path: Path) -> None:
    assert list(tmp_path.glob("store/**/slots.json"))
    assert invoke("stream", "delete", url, "orders", "--yes").exit_code == 0
    assert not list(tmp_path.glob("store/**/slots.json"))


def test_list_tells_slots_from_groups(invoke: Invoke, url: str) -> None:
    result = invoke("slot", "list", url, "orders", "--partition", "0")
    assert result.exit_code == 1
    assert "not the groups that read it" in result.stderr.replace("\n", " ")
    assert f"headwater group list {url} orders" in result.stderr
    assert "not the groups" in " ".join(invoke("slot", "--help").stdout.split())


def test_a_slot_whose_replica_has_nothing_is_listed_with_nothing(invoke: Invoke, url: str) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            keeper = await SlotWriter.open(await register(store), leader_epoch=8)
            keeper.slots.create("late", 100, bootstrapping=True, confirmed_lsn=0)
            await keeper.wait_stored()

    asyncio.run(run())
    rows = json.loads(invoke("slot", "list", url, "orders", "--json").stdout)
    (late,) = (row for row in rows if row["slot"] == "late")
    assert (late["durable_lsn"], late["confirmed_lsn"], late["restart_lsn"]) == (0, 0, 100)


def test_reset_begins_without_slots_where_they_are_gone(invoke: Invoke, url: str) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            await store.delete(await key(store))

    asyncio.run(run())
    result = invoke("slot", "reset", url, "orders", "--partition", "1", "--yes")
    assert result.exit_code == 0, result.output
    assert names(url) == []
    assert invoke("slot", "drop", url, "orders", "late", "--yes").exit_code == 1


def test_an_epoch_that_no_leader_reaches_is_set_back(invoke: Invoke, url: str) -> None:
    reset = ("slot", "reset", url, "orders", "--partition", "1", "--yes", "--epoch")
    higher = invoke(*reset, "8")
    assert higher.exit_code == 2
    assert "epoch 7" in higher.stderr
    result = invoke(*reset, "5")
    assert result.exit_code == 0, result.output
    assert "accepts leaders from epoch 5 on" in result.stdout
    rows = json.loads(invoke("slot", "list", url, "orders", "--json").stdout)
    assert {(row["slot"], row["leader_epoch"]) for row in rows} == {
        ("fresh", 5),
        ("laptop", 5),
        ("standby", 5),
    }
