"""Processes on a local store or a local log, killed at instants of the machine's choosing."""

from __future__ import annotations

from headwater.testing.torture import Scenario
from tests.buffer.killer import kill_round as kill_buffer_round
from tests.log.killer import kill_round as kill_log_round
from tests.spark.killer import kill_round as kill_spark_round
from tests.store.killer import kill_round as kill_store_round

STORE = Scenario(package="store", name="kill", run=kill_store_round, rounds=200, sample=8)
BUFFER = Scenario(package="buffer", name="kill", run=kill_buffer_round, rounds=500, sample=4)
LOG = Scenario(package="log", name="kill", run=kill_log_round, rounds=500, sample=4)
SPARK = Scenario(package="spark", name="kill", run=kill_spark_round, rounds=100, sample=1)
SCENARIOS = [STORE, BUFFER, LOG, SPARK]
