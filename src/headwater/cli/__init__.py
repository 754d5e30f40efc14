"""The `headwater` command.

Enters: a command line. Leaves: text for people on a terminal, plain lines or JSON in a pipe, and
an exit status: 0 done, 1 the answer is no, 2 the question could not be asked.

Always holds:

- an error that Headwater raises on purpose is one line and what to do about it, not a traceback
  (HEADWATER_DEBUG=1 shows that);
- Ctrl-C ends it quietly, also while its parts are loaded: importing this room loads none of them;
- standard output carries the answer alone, so that it can be piped; the rest is on standard error.
"""

from headwater.cli.entry import main

__all__ = ["main"]
