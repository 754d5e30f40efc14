"""Wall time and processor time of one way of producing or consuming."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12  # fields of /proc/<pid>/stat, counted after the name in brackets


def cpu_s(pids: Iterable[int]) -> float | None:
    """Processor seconds that these processes have used; None where there is no /proc."""
    total_s = 0.0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        total_s += (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK_S
    return total_s


@dataclass
class Spent:
    """What the runs of one way took, per record."""

    wall_s: list[float] = field(default_factory=list)
    client_s: list[float] = field(default_factory=list)
    server_s: list[float] = field(default_factory=list)
    knows_server: bool = True

    @property
    def runs(self) -> int:
        """How often it ran."""
        return len(self.wall_s)

    @property
    def rate(self) -> float:
        """Records a second, by the median run."""
        return 1 / statistics.median(self.wall_s)

    @property
    def client_us(self) -> float:
        """Processor µs a record in this process, all its threads."""
        return statistics.median(self.client_s) * 1e6

    @property
    def server_us(self) -> float:
        """Processor µs a record in the peer's own processes."""
        return statistics.median(self.server_s) * 1e6

    @property
    def cpu_us(self) -> float:
        """Both."""
        pairs = zip(self.client_s, self.server_s, strict=True)
        return statistics.median(client + server for client, server in pairs) * 1e6

    def run(self, call: Callable[[], T], records: int, pids: Sequence[int]) -> T:
        """Run it once, and count it."""
        gc.collect()
        server_before_s = cpu_s(pids)
        client_before_s, began_s = time.process_time(), time.perf_counter()
        result = call()
        wall_s = time.perf_counter() - began_s
        client_s = time.process_time() - client_before_s
        server_after_s = cpu_s(pids)
        if server_before_s is None or server_after_s is None:
            self.knows_server = False
        else:
            self.server_s.append((server_after_s - server_before_s) / records)
        self.wall_s.append(wall_s / records)
        self.client_s.append(client_s / records)
        return result
