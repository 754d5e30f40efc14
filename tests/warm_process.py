"""One warm process that runs rounds for a test: whoever is killed in them starts as its fork."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parents[1]


def serve(run_round: Callable[..., None]) -> None:
    """The side of the warm process: a round for each order, until there are no more."""
    for text in sys.stdin:
        try:
            run_round(**json.loads(text))
            told = "done"
        except AssertionError as error:
            told = str(error)
        print(json.dumps(told), flush=True)


class WarmProcess:
    """The caller's side, of a module that serves when it is run as a program."""

    def __init__(self, module: str) -> None:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), *sys.path]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            cwd=REPOSITORY,
        )
        atexit.register(self.close)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, root: Path, **options: Any) -> None:
        """One round, to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = json.dumps({"root": str(root), **options})
        self._process.stdin.write(order.encode() + b"\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline() or '"the warm process ended"')
        assert told == "done", told


@functools.cache
def warm_process(module: str) -> WarmProcess:
    """The one of this module, which ends with this process."""
    return WarmProcess(module)
