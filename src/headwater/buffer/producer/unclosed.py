"""Blocking producers that nobody closed: what they hold is sent when they are dropped or at exit.

Their event loop runs on a thread of Headwater's own, so it can be seen through when the program has
come to its end. What does not get through in time is told, and lost. A process that is killed, or
ends by `os._exit`, sends nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from headwater.buffer.producer.engine import Engine
from headwater.core import portal, runtime
from headwater.core.errors import HeadwaterError, Refused
from headwater.core.portal import Portal
from headwater.store import Store

EXIT_FLUSH_S: Final = 30.0
"""How long the end of a process waits, at most, until what was produced is accepted."""
_log: Final = logging.getLogger("headwater")


class Unclosed:
    """The engines that are open in this process, with the store to close after each."""

    def __init__(self) -> None:
        self._open: dict[Engine, tuple[Portal, Store | None]] = {}

    def watch(self, engine: Engine, home: Portal, owned: Store | None) -> None:
        """See this one through, should nobody close it."""
        self._open[engine] = (home, owned)
        portal.call_at_exit(self.close_all)

    def closed(self, engine: Engine) -> None:
        """Somebody closed it."""
        self._open.pop(engine, None)

    def dropped(self, engine: Engine) -> None:
        """Close one whose front is gone, in the background. For any thread."""
        home, _ = self._open.get(engine, (None, None))
        if home is not None:
            # Refused on the loop's own thread, or after a fork: then it is left to the end.
            with contextlib.suppress(Refused):
                home.post(lambda: runtime.spawn(self._close(engine), name="dropped"))

    def close_all(self, wait_s: float = EXIT_FLUSH_S) -> None:
        """Send what is held, for at most so long."""
        by_portal: dict[Portal, list[Engine]] = {}
        for engine, (home, _) in list(self._open.items()):
            if home.is_open and not engine.is_forked:
                by_portal.setdefault(home, []).append(engine)
                if engine.accumulator.untold_rows:
                    _log.warning(
                        "a producer of stream %r was not closed: %d records are not accepted yet. "
                        "They are sent now, for at most %g s; call close(), or use it in a with",
                        engine.stream.name,
                        engine.accumulator.untold_rows,
                        wait_s,
                    )
        for home, engines in by_portal.items():
            closing = self._close_several(engines)
            try:
                home.call(closing, timeout_s=wait_s)
            except TimeoutError:
                for engine in engines:
                    _tell_lost(engine, f"not accepted within {wait_s:g} s")

    async def _close_several(self, engines: list[Engine]) -> None:
        await asyncio.gather(*(self._close(one) for one in engines))

    async def _close(self, engine: Engine) -> None:
        try:
            await engine.close()
        except HeadwaterError as error:
            _tell_lost(engine, str(error))
        finally:
            if engine.is_closed:
                _, owned = self._open.pop(engine, (None, None))
                if owned is not None:
                    await owned.close()


def _tell_lost(engine: Engine, why: str) -> None:
    _log.error(
        "a producer of stream %r, which nobody closed, could not send everything: %s",
        engine.stream.name,
        why,
    )


UNCLOSED: Final = Unclosed()
"""Those of this process."""
