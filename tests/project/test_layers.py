from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scripts import check_layers

ROOT = Path(__file__).resolve().parents[2]


def findings(root: Path, name: str, source: str) -> list[str]:
    path = root / "src" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return check_layers.check(root)


def test_the_repository_keeps_its_layers() -> None:
    assert check_layers.check(ROOT) == []


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("headwater/store/a.py", "import headwater.buffer\n", "store imports buffer"),
        ("headwater/store/a.py", "from headwater.tier.x import Y\n", "store imports tier"),
        ("headwater/store/a.py", "from headwater import buffer\n", "store imports buffer"),
        ("headwater/store/a.py", "from .. import buffer\n", "store imports buffer"),
        ("headwater/store/deep/a.py", "from ...buffer import X\n", "store imports buffer"),
        (
            "headwater/core/a.py",
            "def f():\n    from headwater.store import X\n",
            "core imports store",
        ),
        (
            "headwater/core/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import headwater.cli\n",
            "core imports cli",
        ),
        ("headwater/store/a.py", "import headwater\n", "top level"),
        ("headwater/store/a.py", "from headwater import Producer\n", "top level"),
        ("headwater/cli/a.py", "import headwater.testing\n", "nothing in src imports"),
        ("headwater/__init__.py", "from headwater.testing import X\n", "nothing in src imports"),
        ("headwater/buffer/a.py", "import obstore.store\n", "obstore is imported only in store"),
        ("headwater/testing/a.py", "from obstore import S3\n", "obstore is imported only in store"),
        ("headwater/tier/a.py", "import pyspark\n", "pyspark is imported only in spark"),
        ("headwater/tier/a.py", "import pyiceberg\n", "only in table and spark"),
        ("headwater/table/a.py", "import pyspark\n", "pyspark is imported only in spark"),
        ("headwater/table/a.py", "import headwater.node\n", "table imports node"),
        ("pyspark_headwater/__init__.py", "from headwater.cli import X\n", "door to spark alone"),
        ("headwater/attic/a.py", "", "no such package"),
        ("headwater/stray.py", "", "no such package"),
        ("elsewhere/__init__.py", "", "no such package"),
    ],
)
def test_a_crossed_layer_is_found(tmp_path: Path, name: str, source: str, reason: str) -> None:
    found = findings(tmp_path, name, source)
    assert len(found) == 1
    assert found[0].startswith(f"src/{name}:")
    assert reason in found[0]


@pytest.mark.parametrize("banned", sorted(check_layers.BANNED))
def test_every_banned_name_is_found(tmp_path: Path, banned: str) -> None:
    source = f"import {banned.split('.')[0]}\nx = {banned}\n"
    assert banned in " ".join(findings(tmp_path, "headwater/store/a.py", source))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import time\n\n\ndef f():\n    return time.time()\n", 5),
        ("import time as t\n\nclock = t.monotonic\n", 3),
        ("from time import sleep as wait\n", 1),
        ("def f():\n    from asyncio import create_task\n", 2),
        ("from datetime import datetime\n\nx = datetime.now()\n", 3),
        ("import datetime as d\n\nx = d.datetime.utcnow()\n", 3),
        ("import concurrent.futures\n\nx = concurrent.futures.ThreadPoolExecutor()\n", 3),
        ("async def f(loop, g):\n    await loop.run_in_executor(None, g)\n", 2),
        ("from random import Random\n", 1),
    ],
)
def test_a_banned_name_is_found_under_any_alias(tmp_path: Path, source: str, line: int) -> None:
    found = findings(tmp_path, "headwater/store/a.py", source)
    assert [entry.split(":")[:2] for entry in found] == [["src/headwater/store/a.py", str(line)]]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("headwater/core/a.py", "import random, time\n\nx = time.time()\n"),
        ("headwater/store/a.py", "import obstore\nfrom headwater.core import X\n"),
        ("headwater/store/a.py", "from headwater.store.objects import Key\nfrom . import keys\n"),
        ("headwater/spark/a.py", "from pyspark.sql import DataFrame\nimport headwater.node\n"),
        ("headwater/cli/a.py", "from headwater import Producer\n"),
        ("headwater/testing/a.py", "import random\nfrom headwater.cli import X\n"),
        ("headwater/__init__.py", "from headwater.cli import main\n"),
        ("pyspark_headwater/__init__.py", "from headwater.spark import DefaultSource\n"),
        ("headwater/store/a.py", "import threading\n\nlock = threading.Lock()\n"),
        ("headwater/store/a.py", "from headwater.core import runtime\n\nx = runtime.random()\n"),
    ],
)
def test_what_the_rules_allow_passes(tmp_path: Path, name: str, source: str) -> None:
    assert findings(tmp_path, name, source) == []


def test_ruff_bans_the_same_names_for_the_same_reasons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table = project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert {name: entry["msg"] for name, entry in table.items()} == check_layers.BANNED


def test_what_is_allowed_is_banned_elsewhere() -> None:
    for names in check_layers.ALLOWED.values():
        assert names.keys() <= check_layers.BANNED.keys()


def test_the_command_reports_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings(tmp_path, "headwater/core/a.py", "import headwater.store\n")
    assert check_layers.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("src/headwater/core/a.py:1: core imports store")
