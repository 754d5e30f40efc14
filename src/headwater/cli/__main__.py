"""The start and the end of the `headwater` command, also as `python -m headwater.cli`.

Ctrl-C has no other handler here. What is imported at the top is loaded before Ctrl-C is listened
for: next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final

_EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


def main() -> None:
    """The `headwater` command."""
    # A shell that starts a command in the background makes it ignore Ctrl-C.
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, _leave)
    from headwater.cli.app import run_app

    try:
        if listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_app()
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    finally:
        if listens:
            # What is left is Python's own: threads that end, modules that are taken down.
            signal.signal(signal.SIGINT, _leave)


def _leave(_: int, __: FrameType | None) -> None:
    """Nothing is half done, so nothing is left to tidy up; an import cannot be asked to stop."""
    os._exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
