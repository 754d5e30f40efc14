"""One process that has loaded what programs load, and runs each of them as its fork."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from pathlib import Path

from headwater import buffer, log, store, testing, tier
from tests.warm_process import serve

LOADED = (buffer.Consumer, buffer.Producer, log.Spool, store.open_store, testing.simulate, tier)
"""Here, so that no fork has to load it."""


def run_program(root: str, code: str) -> None:
    """Run it in a folder, to its end; what it wrote to standard error is that of the failure."""
    errors = Path(root) / "stderr"
    process = os.fork()
    if process == 0:
        os._exit(_become(root, errors, code))
    _, status = os.waitpid(process, 0)
    assert status == 0, errors.read_text(encoding="utf-8")


def _become(root: str, errors: Path, code: str) -> int:
    os.chdir(root)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    try:
        exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve(run_program)
