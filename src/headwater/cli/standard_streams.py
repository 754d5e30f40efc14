"""Standard input, output and error, also where whoever started the command closed them.

What is closed becomes a stream that fails when it is used. Were its number left free, the next file
that is opened would get it, and be written to as if it were the output.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import sys

from headwater.core.errors import Refused


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
