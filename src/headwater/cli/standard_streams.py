"""Standard input, output and error, as a command finds them: closed, unbuffered or non-blocking.

What is closed becomes a stream that fails when it is used. Were its number left free, the next file
that is opened would get it, and be written to as if it were the output.

Always holds: what is written leaves whole, or an error is raised. A pipe takes a part of a write
when a signal comes, and less than all when it does not block. Python's own streams leave it to the
caller to notice where `PYTHONUNBUFFERED` or `-u` took their buffer away, and nobody does: neither
print, nor rich, nor Arrow's writers.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import sys
from typing import Any, Final

from headwater.core.errors import Refused

_BUFFER_BYTES: Final = 64 * 1024


def open_closed_streams() -> None:
    """Give each that is closed a stream: reading from it or writing to it is an error.

    Words on a closed standard error have nobody to reach, and vanish; the exit status remains.
    """
    for name, flags, mode in (
        ("stdin", os.O_WRONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_RDWR, "w"),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            stream = open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


class _WholeOutput(io.RawIOBase):
    """A descriptor that takes all that it is given, however often it has to be asked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size_bytes = len(rest)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                # Others who share the pipe may have made it so, and count on it.
                select.select([], [self._descriptor], [])
        return size_bytes


def write_whole() -> None:
    """Put streams that write whole in place of standard output and standard error.

    With a buffer, and on a terminal or where none was wanted, flushed at the end of each line.
    """
    for name in ("stdout", "stderr"):
        found = getattr(sys, name)
        if not isinstance(found, io.TextIOWrapper):
            continue
        found.flush()
        whole = io.BufferedWriter(_WholeOutput(found.fileno()), _BUFFER_BYTES)
        # A terminal that cannot show a character shows another, and the command goes on.
        stream = io.TextIOWrapper(
            whole,
            encoding=found.encoding,
            errors="replace",
            line_buffering=found.line_buffering or isinstance(found.buffer, io.RawIOBase),
        )
        setattr(sys, name, stream)


def output_has_gone() -> bool:
    """Whether whoever read standard output is not there any more; told without writing to it."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return False  # what stands in for it has no descriptor, and no reader
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are told without being asked for
    return any(told & (select.POLLERR | select.POLLHUP) for _, told in poll.poll(0))


def check_input() -> None:
    """`Refused` if standard input is closed."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:
        return  # what stands in for it has no descriptor, and is not closed
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise Refused("standard input is closed: name a file, or send something to it")
