"""After `headwater tier renew` nobody goes by the old log: neither scrubs nor deletions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.store import open_store
from headwater.tier.jobs import LogStartRegister, TierManager
from tests.cli.conftest import Invoke
from tests.cli.test_tier_commands import led, partition

ANEW = ("--prefix", "metadata-2")


async def _copy(tier: TierManager) -> None:
    await tier.run_once()
    assert not tier.problems


@pytest.fixture
def url(tmp_path: Path, invoke: Invoke) -> str:
    """A stream with segments in the tier, by a log that goes on under metadata-2."""
    address = f"file://{tmp_path}/store"
    assert invoke("stream", "create", address, "orders").exit_code == 0
    led(address, _copy)
    assert invoke("tier", "renew", address, "--to-prefix", "metadata-2").exit_code == 0
    return address


@pytest.mark.parametrize(
    "command",
    [
        ("tier", "scrub", "URL", "orders", "--repair", "--grace-hours", "0"),
        ("tier", "list", "URL", "orders"),
        ("tier", "compact", "URL"),
        ("stream", "delete", "URL", "orders", "--yes"),
    ],
)
def test_the_old_log_is_refused_with_where_it_goes_on(
    invoke: Invoke, url: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    objects = sorted(tmp_path.glob("store/**/*.parquet"))
    given = [url if word == "URL" else word for word in command]
    refused = invoke(*given)
    assert (refused.exit_code, "goes on under 'metadata-2'" in refused.stderr) == (2, True)
    assert sorted(tmp_path.glob("store/**/*.parquet")) == objects != []
    assert invoke(*given, *ANEW).exit_code == 0


def test_a_scrub_removes_nothing_by_a_log_that_its_leader_does_not_use(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    led(url, _copy, prefix="metadata-2")

    async def leads_by_another_log() -> None:
        async with open_store(url) as store:
            start = LogStartRegister(store, await partition(store))
            await start.begin_epoch(5, began_ms=1, oldest_lsn=1)

    asyncio.run(leads_by_another_log())
    scrub = ("tier", "scrub", url, "orders", *ANEW)
    assert invoke(*scrub).exit_code == 0
    refused = invoke(*scrub, "--repair")
    assert (refused.exit_code, "which this event log does not contain" in refused.stderr) == (
        2,
        True,
    )
