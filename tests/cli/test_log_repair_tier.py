"""`headwater log repair --tier`: a log is mended from the segments of its stream."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headwater.log import Spool
from headwater.tier.jobs import TierManager
from tests.cli.conftest import Invoke
from tests.cli.test_tier_commands import led
from tests.log.given import closing, wait

SEGMENT = f"{1:020d}.wal"


@pytest.fixture
def url(tmp_path: Path, invoke: Invoke) -> str:
    """A stream whose records 1 to 100 are in the tier."""
    address = f"file://{tmp_path}/store"
    assert invoke("stream", "create", address, "orders", "--partitions", "2").exit_code == 0

    async def copy(tier: TierManager) -> None:
        await tier.run_once()
        assert not tier.problems

    led(address, copy)
    return address


def grown(path: Path, *, records: int = 100, text: str = "%d") -> Path:
    """A log whose first frame is damaged."""
    with closing(Spool.open(str(path))) as spool:
        for lsn in range(1, records + 1, 10):
            values = [(text % one).encode() for one in range(lsn, lsn + 10)]
            wait(spool.append(pa.record_batch({"_value": pa.array(values)}), term=1))
    data = bytearray((path / SEGMENT).read_bytes())
    data[100] ^= 1
    (path / SEGMENT).write_bytes(bytes(data))
    return path


def test_a_log_is_mended_from_the_tier(url: str, tmp_path: Path, invoke: Invoke) -> None:
    folder = grown(tmp_path / "log")
    result = invoke("log", "repair", str(folder), "--tier", url, "--stream", "orders")
    assert result.exit_code == 0, result.output
    assert "repaired LSN 1 to 10 from the tier of orders, partition 0" in result.stdout
    with closing(Spool.open(str(folder))) as spool:
        found = pa.Table.from_batches([one.records for one in wait(spool.read_since(0))])
    assert found.column("_value").to_pylist() == [b"%d" % lsn for lsn in range(1, 101)]


def test_the_tier_of_another_log_is_refused(url: str, tmp_path: Path, invoke: Invoke) -> None:
    folder = grown(tmp_path / "log", text="other %d")
    before = (folder / SEGMENT).read_bytes()
    result = invoke("log", "repair", str(folder), "--tier", url, "--stream", "orders")
    assert result.exit_code == 2
    assert "another record" in result.stderr
    assert (folder / SEGMENT).read_bytes() == before


def test_what_the_tier_has_not_is_told(url: str, tmp_path: Path, invoke: Invoke) -> None:
    folder = grown(tmp_path / "log")
    asked = ("log", "repair", str(folder), "--tier", url)
    assert invoke(*asked).exit_code == 2
    assert invoke("log", "repair", str(folder), "--stream", "orders").exit_code == 2
    result = invoke(*asked, "--stream", "orders", "--partition", "1")
    assert result.exit_code == 1
    assert "missing  LSN 1 to 10: no source has it" in result.stdout
    assert "--tier" in result.stdout
    result = invoke(*asked, "--stream", "orders", "--partition", "7")
    assert result.exit_code == 2


def test_a_store_without_a_tier_says_so(tmp_path: Path, invoke: Invoke) -> None:
    folder, url = grown(tmp_path / "log"), f"file://{tmp_path}/store"
    assert invoke("stream", "create", url, "orders").exit_code == 0
    result = invoke("log", "repair", str(folder), "--tier", url, "--stream", "orders")
    assert result.exit_code == 2
    assert "nothing was ever copied to the tier" in result.stderr
