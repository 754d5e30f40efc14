"""The `headwater` command. For builders; users: docs/command-line.md, docs/api.md.

It runs a command line, prints text or JSON, and ends with a status: 0 done, 1 the answer is no, 2
the command failed or could not run. A `Report` (`report`) describes each object that a command
shows, and `render` prints it; nothing else lays out text.

Always holds:

- an expected error is printed as one line and what to do about it, without a traceback
  (HEADWATER_DEBUG=1 shows that);
- Ctrl-C ends the command quietly, also while modules are loaded: importing this package loads none;
- standard output has only the answer, so that it can be piped; messages go to standard error.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.cli.__main__ import main

__all__ = ["main"]
__getattr__, __dir__ = exports(__name__, {"__main__": "main"})
