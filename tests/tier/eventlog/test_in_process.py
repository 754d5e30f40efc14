"""What the log of one process does beyond the contract."""

from __future__ import annotations

import pytest

from headwater.core.errors import Refused
from headwater.testing import simulate
from headwater.testing.sim import Simulation
from headwater.tier.eventlog import InProcessEventLog


def test_a_log_without_partitions_is_refused() -> None:
    with pytest.raises(Refused, match="at least one partition"):
        InProcessEventLog(0)


def test_a_long_backlog_of_one_partition_holds_up_no_other() -> None:
    async def main(sim: Simulation) -> None:
        log = InProcessEventLog(3)
        for _ in range(100):
            await log.publish(1, b"long")
        await log.publish(0, b"short")
        await log.publish(2, b"short")
        subscription = await log.subscribe({0: 0, 1: 0, 2: 0})
        first = {(await anext(subscription)).partition for _ in range(3)}
        assert first == {0, 1, 2}

    simulate(main)
