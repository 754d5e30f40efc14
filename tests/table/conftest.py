from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.core import runtime
from tests.table.warehouse import Instant, Warehouse


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    """An empty one, in which nobody waits for real time."""
    with runtime.installed(Instant()):
        yield Warehouse()
