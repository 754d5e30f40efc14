"""An address to keep streams at, and a file with a schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.stream.given import COLUMNS


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(COLUMNS))
    return path
