"""Writers on a local store, killed at instants of the machine's choosing."""

from __future__ import annotations

from headwater.testing.torture import Scenario
from tests.store.killer import kill_round

SCENARIOS = [Scenario(room="store", name="kill", run=kill_round, rounds=200, sample=15)]
