"""A process of the demo, in its first life or a later one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headwater.core.errors import HeadwaterError


class Tail:
    """The whole lines of a file that others append to, each read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[bytes]:
        """What was added since the last time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return data[:whole].splitlines()


@dataclass(slots=True)
class DemoProcess:
    """One module of the demo, run with arguments; its complaints go to a log."""

    name: str
    module: str
    arguments: list[str]
    log: Path
    lives: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin a life, in a group of its own: whatever it starts ends with it."""
        self.lives += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL: no handler runs, no buffer is written."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def was_killed(self) -> bool:
        """Whether it ended by SIGKILL."""
        return self.process is not None and self.process.poll() == -signal.SIGKILL

    @property
    def is_done(self) -> bool:
        """Whether it came to its end; raises if that was an error."""
        if self.process is None or self.process.poll() is None:
            return False
        if self.process.returncode != 0:
            text = self.log.read_text(errors="replace").strip()
            said = text.splitlines()[-1] if text else "no word"
            raise HeadwaterError(f"{self.name} failed: {said} (all of it: {self.log})")
        return True
