"""What a command gets from the shell: standard streams, signals, the event loop, confirmation.

Streams may be closed, unbuffered or non-blocking. A closed one is replaced by a stream that fails
when it is used: otherwise the next opened file would get its number, and the output.

Always holds: output is written completely, or an error is raised. A pipe accepts a part of a write
when a signal comes, and less than all when it does not block. Python's streams leave that to the
caller where `PYTHONUNBUFFERED` or `-u` removed their buffer; print, rich and Arrow's writers do not
handle it.

Ctrl-C: a signal that arrives while the command waits ends the waiting. One that arrives during work
is noted, and the work checks for it when it is done. A second one, later, ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import io
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from types import FrameType
from typing import Any, Final, TypeVar

import typer

from headwater.core import runtime
from headwater.core.errors import Refused

_BUFFER_BYTES: Final = 64 * 1024


def open_closed_streams() -> None:
    """Give each that is closed a stream: reading from it or writing to it is an error.

    What is written to a closed standard error is lost; the exit status remains.
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
        original = getattr(sys, name)
        if not isinstance(original, io.TextIOWrapper):
            continue
        original.flush()
        whole = io.BufferedWriter(_WholeOutput(original.fileno()), _BUFFER_BYTES)
        # A terminal that cannot show a character shows another, and the command goes on.
        stream = io.TextIOWrapper(
            whole,
            encoding=original.encoding,
            errors="replace",
            line_buffering=original.line_buffering or isinstance(original.buffer, io.RawIOBase),
        )
        setattr(sys, name, stream)


def output_has_gone() -> bool:
    """Whether the reader of standard output has closed it; found without writing to it."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return False  # a substitute has no descriptor, and no reader
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always reported
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def check_input() -> None:
    """`Refused` if standard input is closed."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:
        return  # a substitute has no descriptor, and is not closed
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise Refused("standard input is closed: name a file, or send something to it")


_NOTED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_BASE: Final = 128
SAME_S: Final = 0.5
"""Signals that follow each other within this are one."""
LOOK_S: Final = 0.5
"""How often a waiting command checks whether its output is still read."""


class WaitInterrupted(Exception):
    """A signal ended the waiting."""


class Interrupt:
    """Notes the signals that ask a command to end."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._received_s = 0.0
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in _NOTED_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_status(self) -> int:
        """As the shell has it for a program that the signal ended."""
        return _EXIT_BASE + (self.received or signal.SIGINT)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this, a signal raises `WaitInterrupted`; also one that has come before."""
        self._waiting = True
        try:
            if self.received is not None:
                raise WaitInterrupted
            yield
        finally:
            self._waiting = False

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Within this nothing has begun yet: a signal ends the command."""
        try:
            with self.waiting():
                yield
        except WaitInterrupted:
            raise typer.Exit(self.exit_status) from None

    @contextlib.contextmanager
    def noticing(self, has_gone: Callable[[], bool]) -> Iterator[None]:
        """Within this, waiting ends with `BrokenPipeError` once it has gone.

        A pipe tells its writer that it was closed when something is written, and while nothing
        comes there is nothing to write.
        """

        def look(_: int, __: FrameType | None) -> None:
            if self._waiting and has_gone():
                raise BrokenPipeError(errno.EPIPE, "the reader of the output is gone")

        before = signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        now_s = runtime.monotonic_s()
        if self.received is not None:
            # The parent (make, timeout) may pass on the signal that the terminal sent as well.
            if now_s - self._received_s > SAME_S:
                raise KeyboardInterrupt
            return
        self.received, self._received_s = number, now_s
        if self._waiting:
            raise WaitInterrupted


A = TypeVar("A")
T = TypeVar("T")

# asyncio handles Ctrl-C itself. These signals mean the same, and what was written for
# the time of a command is removed then, too.
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in an event loop of its own; a signal cancels it, and it cleans up."""
    received: list[int] = []

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel(number: int) -> None:
            received.append(number)
            if task is not None:
                task.cancel()

        for number in _END_SIGNALS:
            loop.add_signal_handler(number, cancel, number)
        return await work

    try:
        return asyncio.run(cancellable())  # noqa: TID251  a command is where an event loop starts
    except asyncio.CancelledError:
        raise SystemExit(128 + (received[0] if received else signal.SIGINT)) from None


AT_ONCE: Final = 16
"""Partitions or objects that a command works on at the same time."""


async def gather_bounded(work: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """The result for each item, several at once: what one waits for, the others wait for meanwhile.

    An error of one is raised when all the others are done.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(item: A) -> tuple[T]:
        async with slots:
            return (await work(item),)  # a result that is an error is not one that was raised

    results: list[T] = []
    for outcome in await asyncio.gather(*map(one, items), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results += outcome
    return results


def confirm(question: str, *, unasked: str) -> None:
    """Continue only if the answer is yes. Ctrl-C is no answer: it ends the command.

    `unasked` is the error without a terminal to answer at.
    """
    if not is_interactive():
        raise Refused(unasked)
    try:
        agreed = typer.confirm(question)
    except typer.Abort as stopped:
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    if not agreed:
        raise typer.Abort


def is_interactive() -> bool:
    """Whether there is a terminal to answer at."""
    return sys.stdin.isatty()
