"""The `headwater` command.

It takes a command line, prints text or JSON, and ends with a status: 0 done, 1 the answer is no,
2 the command failed or could not run. Each object that a command shows is described by a `Report`
(`report`), which `render` prints; nothing else lays out text.

Always holds:

- an error that Headwater raises on purpose is one line and what to do about it, not a traceback
  (HEADWATER_DEBUG=1 shows that);
- Ctrl-C ends it quietly, also while its parts are loaded: importing this package loads none;
- standard output carries the answer alone, so that it can be piped; the rest is on standard error.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.cli.__main__ import main

__all__ = ["main"]
__getattr__, __dir__ = exports(__name__, {"__main__": "main"})
