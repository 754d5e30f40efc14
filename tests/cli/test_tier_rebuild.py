"""`headwater tier rebuild`: a damaged log of events begins anew under another prefix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.tier.jobs import TierManager
from tests.cli.conftest import Invoke
from tests.cli.test_tier_commands import led


async def _copy(tier: TierManager) -> None:
    await tier.run_once()
    assert not tier.problems


@pytest.fixture
def url(tmp_path: Path, invoke: Invoke) -> str:
    """A stream with two segments in the tier, LSN 1 to 50 and 51 to 100."""
    address = f"file://{tmp_path}/store"
    assert invoke("stream", "create", address, "orders", "--partitions", "2").exit_code == 0
    led(address, _copy)
    return address


def events_in(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("store/metadata/*/0*"))


def test_a_lost_event_is_no_loss(invoke: Invoke, url: str, tmp_path: Path) -> None:
    before = invoke("tier", "list", url, "orders", "--json").stdout
    lost = events_in(tmp_path)[2]
    lost.unlink()
    assert invoke("tier", "list", url, "orders").exit_code == 2
    kept = {path: path.read_bytes() for path in events_in(tmp_path)}

    result = invoke("tier", "rebuild", url, "--to-prefix", "metadata-2", COLUMNS="200")
    assert result.exit_code == 0, result.output
    assert f"{lost.parent.name}/{lost.name}: gone, and later events are not" in result.stdout
    assert "the new log is metadata-2; the old log can no longer be opened" in result.stdout
    anew = ("--prefix", "metadata-2")
    listed = json.loads(invoke("tier", "list", url, "orders", "--json", *anew).stdout)
    assert listed == json.loads(before)
    assert invoke("tier", "scrub", url, "orders", *anew).exit_code == 0
    led(url, _copy, prefix="metadata-2")
    assert {path: path.read_bytes() for path in events_in(tmp_path)} == kept


def test_segments_alone_and_what_they_cannot_say(invoke: Invoke, url: str, tmp_path: Path) -> None:
    (tmp_path / "store/metadata/log.json").write_bytes(b"damaged")
    to_prefix = ("tier", "rebuild", url, "--to-prefix", "metadata-2")
    assert invoke(*to_prefix).exit_code == 2
    first = min(tmp_path.glob("store/streams/orders/0/segments/*/*.parquet"))
    first.write_bytes(first.read_bytes()[:-1])

    result = invoke(*to_prefix, "--metadata-partitions", "3", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["missing"] == ["all events: nothing of the old log was read"]
    orders, other = told["partitions"]
    assert (orders["first_lsn"], orders["last_lsn"], orders["leader_epoch"]) == (51, 100, 4)
    assert orders["gaps"] == [[1, 50]]
    assert (len(orders["from_objects"]), first.name in orders["unreadable"][0]) == (1, True)
    assert (other["partition"], other["pieces"]) == (1, 0)
    again = invoke("tier", "rebuild", url, "--to-prefix", "m-3", "--metadata-partitions", "3")
    assert "✗ orders, partition 0: LSN 1 to 50 are in no segment" in again.stdout
    assert "✗ orders, partition 0: left out: " in again.stdout
    assert invoke("tier", "list", url, "orders", "--prefix", "metadata-2").exit_code == 1


def test_the_old_log_is_never_written_over(invoke: Invoke, url: str) -> None:
    over = invoke("tier", "rebuild", url, "--to-prefix", "metadata")
    assert (over.exit_code, "needs another prefix" in over.stderr) == (2, True)
    done = invoke("tier", "rebuild", url, "--to-prefix", "metadata-2")
    assert (done.exit_code, "nothing was missing" in done.stdout) == (0, True)
    again = invoke("tier", "rebuild", url, "--to-prefix", "metadata-3")
    assert (again.exit_code, "goes on under 'metadata-2'" in again.stderr) == (2, True)
    anew = ("--prefix", "metadata-2")
    taken = invoke("tier", "rebuild", url, "--to-prefix", "metadata", *anew)
    assert (taken.exit_code, "goes on under 'metadata-2'" in taken.stderr) == (2, True)
