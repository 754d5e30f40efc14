"""An event loop with virtual time, in which a seed decides which task runs next.

Always holds:

- steps of tasks run in an order that the seed decides; plain callbacks run in the order in which
  they were scheduled, as asyncio promises, but tasks may run in between;
- no order depends on an address or on the hash of a string: the same seed gives the same run in
  every process;
- a handle of a killed group never runs;
- asyncio's own tasks, futures and primitives run unchanged.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import heapq
import random
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from headwater.testing.guard import (
    Deadlock,
    LimitReached,
    SimulationError,
    SimulationEscape,
    UnhandledFailure,
)
from headwater.testing.sim_task import GROUP, SimGroup, SimHandle, SimTask, abandon, where

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Generator = AsyncGenerator[Any, Any]

MAX_STEPS: Final = 2_000_000
MAX_VIRTUAL_S: Final = 100 * 365 * 86_400.0
STALL_MAX_S: Final = 0.001

# The average number of steps between two stalls (see SimLoop._stall).
_STALL_EVERY_STEPS: Final = 32
_STALL_MIN_S: Final = 0.000_001
# The garbage collector runs at fixed steps. Otherwise it would close generators at a step that
# differs between processes.
_COLLECT_EVERY_STEPS: Final = 250_000
_TIMERS_SWEEP_ABOVE: Final = 64
_TASKS_SWEEP_ABOVE: Final = 256
_DRAIN_ROUNDS: Final = 100
_TRACE_PRIME: Final = 1_000_003
_TRACE_MASK: Final = (1 << 60) - 1


class SimLoop(asyncio.AbstractEventLoop):
    """Runs coroutines in virtual time, in an order drawn from `choice`, in one thread."""

    def __init__(
        self,
        choice: random.Random,
        *,
        max_steps: int = MAX_STEPS,
        max_virtual_s: float = MAX_VIRTUAL_S,
        stall_max_s: float = STALL_MAX_S,
    ) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.trace = 0
        """Two runs that agree in it ran the same tasks in the same order."""
        self._choice = choice
        # Half of the seeds prefer some tasks over others: a uniform draw hardly ever leaves one
        # task behind for long, and many races need exactly that.
        self._biased = choice.random() < 0.5
        self._max_steps = max_steps
        self._max_virtual_s = max_virtual_s
        self._stall_max_s = stall_max_s
        self._steps: list[SimHandle] = []
        self._callbacks: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timers_set = 0
        self._timers_dropped = 0
        self._tasks: list[SimTask[Any]] = []
        self._tasks_made = 0
        self._tasks_sweep_at = _TASKS_SWEEP_ABOVE
        self._generators: dict[int, tuple[weakref.ref[Generator], contextvars.Context]] = {}
        self._generators_seen = 0
        self._collect_at = _COLLECT_EVERY_STEPS
        self._failure: BaseException | None = None
        self._running = False
        self._closed = False

    # Called by asyncio

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if self._closed:
            raise RuntimeError("the simulation is over")
        # A task schedules its steps and its wake-ups as methods of itself.
        task = getattr(callback, "__self__", None)
        if type(task) is SimTask:
            handle = SimHandle(callback, args, context or task.own_context, task.group, task)
            self._steps.append(handle)
            return handle
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, context, context.get(GROUP))
        self._callbacks.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if self._closed:
            raise RuntimeError("the simulation is over")
        context = context or contextvars.copy_context()
        timer = SimHandle(callback, args, context, context.get(GROUP), None, self, when)
        self._set_timer(when, timer)
        return timer

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> SimTask[Any]:
        if options.get("eager_start"):
            raise SimulationError("an eager task starts without asking the scheduler")
        if self._closed:
            coro.close()
            raise RuntimeError("the simulation is over")
        self._tasks_made += 1
        number = self._tasks_made
        task = SimTask(
            coro,
            loop=self,
            # asyncio's own default counts across loops and so differs from run to run.
            name=f"task-{number}" if name is None else str(name),
            context=context if context is not None else contextvars.copy_context(),
            number=number,
            rank=self._choice.random() if self._biased else 0.0,
        )
        if task.group is not None:
            task.group.unfinished += 1
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_sweep_at:
            self._tasks = [t for t in self._tasks if not t.done() or t._log_traceback]
            self._tasks_sweep_at = 2 * len(self._tasks) + _TASKS_SWEEP_ABOVE
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed:
            return
        error = context.get("exception")
        if error is None:
            error = SimulationError(str(context.get("message")))
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the simulation before its next step; also an error that the code swallows does."""
        if self._failure is None:
            self._failure = error

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    async def shutdown_asyncgens(self) -> None:
        """Nothing: the run itself ends them."""

    async def shutdown_default_executor(self) -> None:
        """Nothing: there is none."""

    # Running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main`, then cancel what it left behind and let that clean up; then close."""
        asyncio._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generator_seen, finalizer=self._generator_dropped)
        collecting = gc.isenabled()
        gc.disable()
        self._running = True
        try:
            task = self.create_task(main, name="main")
            self._run_until(task.done)
            if task.cancelled() or task.exception() is None:
                self._drain()
            return task.result()  # type: ignore[no-any-return]
        except BaseException as error:
            for failed in self._unhandled():
                error.add_note(
                    f"also, no task awaited {failed.get_name()!r}: {failed.exception()!r}"
                )
            raise
        finally:
            self._running = False
            self.close()
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()

    def close(self) -> None:
        """End every coroutine at its present line: its clean-up may run but not await."""
        if self._running:
            raise RuntimeError("a running simulation cannot be closed")
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            if not task.done():
                task.own_context.run(abandon, task.get_coro())
        self._steps.clear()
        self._callbacks.clear()
        self._timers.clear()

    def _run_until(self, done: Callable[[], bool]) -> None:
        steps, callbacks = self._steps, self._callbacks
        draw, biased = self._choice.random, self._biased
        until_stall = self._stall_interval()
        while not done():
            if self._failure is not None:
                raise self._failure
            waiting = len(steps)
            choices = waiting + 1 if callbacks else waiting
            if choices == 0:
                self._advance()
                continue
            index = int(draw() * choices) if choices > 1 else 0
            if index < waiting:
                if biased and waiting > 1:
                    other = int(draw() * waiting)
                    if steps[other].task.rank > steps[index].task.rank:  # type: ignore[union-attr]
                        index = other
                handle = steps[index]
                last = steps.pop()
                if last is not handle:
                    steps[index] = last
            else:
                handle = callbacks.popleft()
            group, task = handle.group, handle.task
            if handle.dropped or (
                group is not None and group.is_blocked and self._defer_if_blocked(group, handle)
            ):
                continue
            mark = task.name_hash if task is not None else 0
            self.trace = (self.trace * _TRACE_PRIME + mark + index) & _TRACE_MASK
            self.steps += 1
            if self.steps > self._max_steps:
                raise LimitReached(f"more than {self._max_steps} steps (max_steps)")
            until_stall -= 1
            if until_stall <= 0:
                self._stall()
                until_stall = self._stall_interval()
            try:
                handle.own_context.run(handle.call, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                error.add_note(f"raised by {handle!r}")
                self.fail(error)
            if group is not None and task is not None and task.done():
                group.task_ended()
        if self._failure is not None:
            raise self._failure

    def _defer_if_blocked(self, group: SimGroup, handle: SimHandle) -> bool:
        """Whether the handle must not run now, because its group is dead or frozen."""
        if not group.alive:
            return True
        if group.frozen_until_s <= self.now_s:
            group.is_blocked = False
            return False
        self._set_timer(group.frozen_until_s, handle)
        return True

    def _stall_interval(self) -> int:
        return 1 + int(self._choice.random() * 2 * _STALL_EVERY_STEPS)

    def _stall(self) -> None:
        """Let time pass although there is work, as a busy machine does.

        Without it whatever is ready would always win against a timer, and a time-out could
        never meet the result it was waiting for.
        """
        if self.steps > self._collect_at:
            self._collect_at += _COLLECT_EVERY_STEPS
            gc.collect()
        if self._stall_max_s > _STALL_MIN_S:
            ratio = self._stall_max_s / _STALL_MIN_S
            self.now_s += _STALL_MIN_S * ratio ** self._choice.random()
            self._release_due()

    def _set_timer(self, at_s: float, handle: SimHandle) -> None:
        self._timers_set += 1
        heapq.heappush(self._timers, (at_s, self._timers_set, handle))

    def timer_dropped(self) -> None:
        """Count a cancelled timer, and forget them all when they are most of what there is."""
        self._timers_dropped += 1
        if self._timers_dropped > _TIMERS_SWEEP_ABOVE + len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2].dropped]
            heapq.heapify(self._timers)
            self._timers_dropped = 0

    def _release_due(self) -> None:
        timers, now_s = self._timers, self.now_s
        while timers and timers[0][0] <= now_s:
            handle = heapq.heappop(timers)[2]
            if not handle.dropped:
                (self._callbacks if handle.task is None else self._steps).append(handle)

    def _advance(self) -> None:
        """Advance the time to the next timer that is not cancelled and whose group lives."""
        timers = self._timers
        while timers:
            at_s, _, handle = timers[0]
            if handle.dropped or (handle.group is not None and not handle.group.alive):
                heapq.heappop(timers)
                continue
            if at_s > self._max_virtual_s:
                raise LimitReached(
                    f"more than {self._max_virtual_s} virtual seconds (max_virtual_s)"
                )
            self.now_s = max(self.now_s, at_s)
            self._release_due()
            return
        raise Deadlock(self._describe_waiting())

    # The end of a run

    def _unhandled(self) -> list[SimTask[Any]]:
        failed = [task for task in self._tasks if task.done() and task._log_traceback]
        return [task for task in failed if task.group is None or task.group.alive]

    def _drain(self) -> None:
        """Cancel tasks that `main` left, close generators, and raise errors that were not seen."""
        for _ in range(_DRAIN_ROUNDS):
            pending = [task for task in self._tasks if not _over(task)]
            for task in pending:
                task.cancel()
            # Generators afterwards: one that a task still iterates cannot be closed.
            if not (pending := pending or self._close_generators()):
                break
            self._run_until(functools.partial(_all_over, pending))
        else:
            raise LimitReached(f"tasks keep starting others after {_DRAIN_ROUNDS} cancellations")
        for task in self._unhandled():
            error = UnhandledFailure(f"task {task.get_name()!r} failed and no task awaited it")
            raise error from task.exception()

    def _close_generators(self) -> list[SimTask[Any]]:
        closing = []
        for ref, scope in list(self._generators.values()):
            generator, group = ref(), scope.get(GROUP)
            if generator is not None and (group is None or group.alive):
                task = self.create_task(generator.aclose(), name="close generator", context=scope)
                closing.append(task)
        self._generators.clear()
        return closing

    def _generator_seen(self, generator: Generator) -> None:
        self._generators_seen += 1
        number = self._generators_seen
        forget = self._generators.pop
        ref = weakref.ref(generator, lambda _: forget(number, None))
        self._generators[number] = (ref, contextvars.copy_context())

    def _generator_dropped(self, generator: Generator) -> None:
        if not self._closed:
            self.create_task(generator.aclose(), name="close generator")

    def _describe_waiting(self) -> str:
        lines = [f"nothing can run any more at {self.now_s:.6f} s; waiting are"]
        for task in self._tasks:
            if not task.done():
                dead = task.group is not None and not task.group.alive
                fate = " (killed)" if dead else ""
                lines.append(f"  {task.get_name()!r}{fate} {where(task.get_coro())}")
        return "\n".join(lines)


def _over(task: SimTask[Any]) -> bool:
    return task.done() or (task.group is not None and not task.group.alive)


def _all_over(tasks: list[SimTask[Any]]) -> bool:
    while tasks and _over(tasks[-1]):
        tasks.pop()
    return not tasks


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: SimLoop, *_args: Any, **_options: Any) -> NoReturn:
        error = SimulationEscape(f"loop.{name} reached outside the simulation")
        self.fail(error)
        raise error

    refuse.__name__ = name
    return refuse


# Whatever asyncio offers and this loop does not define leads outside: sockets, signals, threads,
# processes, also those that a later Python adds.
for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(SimLoop):
        setattr(SimLoop, _name, _refusing(_name))
