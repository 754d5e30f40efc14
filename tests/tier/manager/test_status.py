"""What a manager may be told, and what not."""

from __future__ import annotations

from dataclasses import fields

import pytest

from headwater.core.errors import Refused
from headwater.tier.manager import ManagerConfig


@pytest.mark.parametrize("name", [one.name for one in fields(ManagerConfig)])
def test_every_time_is_above_zero(name: str) -> None:
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(Refused, match=f"{name} is .*: it must be above 0"):
            ManagerConfig(**{name: bad})


def test_pauses_double_up_to_their_cap() -> None:
    config = ManagerConfig(retry_base_s=1.0, retry_cap_s=8.0)
    for failures, longest_s in enumerate((1.0, 2.0, 4.0, 8.0, 8.0)):
        assert longest_s / 2 <= config.pause_s(failures) <= longest_s
    assert config.pause_s(10_000) <= 8.0
