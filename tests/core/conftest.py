"""The disks: the system's and the faulty one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.core.disk import OsDisk
from headwater.testing.disk import FaultyDisk
from tests.core.places import Place


@pytest.fixture(params=["system", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "system":
        return Place(OsDisk(), str(tmp_path))
    disk = FaultyDisk()
    disk.make_dir("/data")
    return Place(disk, "/data")
