"""What a replica says to its source, one registration at a time.

Always holds: no answer is looked at before its term is heeded: one of a leader that was overtaken
is `Fenced`, and one of a new leader is kept on disk first, and used only if it answers a
registration: the copy was compared with another leader's log before. An answer that does not come
is `Unavailable`, never awaited for ever; and so is whatever goes wrong at the source or on the way
to it, be it a damaged log, a broken line or a mistake: none of it is a reason for a copy to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Conflict,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log.primary import (
    Acknowledged,
    Acknowledgement,
    Bootstrap,
    Pulled,
    Registered,
    ReplicationSource,
)
from headwater.log.replica.config import ReplicaConfig
from headwater.log.slots import is_comparable


class _Answer(Protocol):
    @property
    def term(self) -> int:
        """Of the leader that gave it."""


A = TypeVar("A", bound=_Answer)
_SAID: Final = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict)
"""What a source says to its replica."""
Heed = Callable[[int], Awaitable[None]]


class Link:
    """A source, the session with it, and the fence in front of its answers."""

    def __init__(
        self, name: str, source: ReplicationSource, config: ReplicaConfig, heed: Heed
    ) -> None:
        self._name = name
        self._source = source
        self._config = config
        self._heed = heed
        self._told: Registered | None = None
        self._acknowledged: Acknowledgement | None = None
        self._acknowledged_s = 0.0

    @property
    def told(self) -> Registered:
        """The answer to the registration that counts."""
        if self._told is None:
            raise Bug(f"replica {self._name!r} is not registered")
        return self._told

    def reaches(self, lsn: int) -> bool:
        """Whether the log can go on after a copy that ends here."""
        told = self.told
        return is_comparable(lsn, confirmed_lsn=told.confirmed_lsn, oldest_lsn=told.oldest_lsn)

    @property
    def _session(self) -> str | None:
        return None if self._told is None else self._told.session

    async def register(self, position_lsn: int) -> Registered:
        """Come, or come back; what follows is said in the session that this gives."""
        self._told = None
        told = await self._ask(
            self._source.register(self._name, position_lsn, region=self._config.region)
        )
        self._told, self._acknowledged = told, None
        return told

    async def pull(self, since_lsn: int, *, wait_s: float) -> Pulled:
        """What follows, or nothing after `wait_s`."""
        config = self._config
        return await self._ask(
            self._source.pull(
                self._name,
                since_lsn,
                session=self._session,
                max_records=config.max_records,
                max_bytes=config.max_bytes,
                wait_s=wait_s,
            ),
            wait_s=wait_s,
        )

    async def acknowledge(self, progress: Acknowledgement) -> bool:
        """Say how far the copy is, if that changed, and from time to time that it did not.

        Whether it was said.
        """
        now_s = runtime.monotonic_s()
        is_due = now_s - self._acknowledged_s >= self._config.ack_interval_s
        if progress == self._acknowledged and not is_due:
            return False
        await self._ask(self._source.acknowledge(self._name, progress, session=self._session))
        self._acknowledged, self._acknowledged_s = progress, now_s
        return True

    async def begin_bootstrap(self, image_lsn: int | None) -> Bootstrap:
        """Have the log kept after an image, or from its beginning."""
        return await self._ask(
            self._source.begin_bootstrap(self._name, image_lsn=image_lsn, session=self._session)
        )

    async def complete_bootstrap(self, lsn: int) -> Acknowledged:
        """Say that everything through this LSN is here, and on disk."""
        self._acknowledged = None
        return await self._ask(
            self._source.complete_bootstrap(self._name, lsn, session=self._session)
        )

    async def _ask(self, answering: Awaitable[A], *, wait_s: float = 0.0) -> A:
        timeout_s = self._config.call_timeout_s + wait_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await answering
        except TimeoutError as error:
            raise Unavailable(f"the source did not answer within {timeout_s:.0f} s") from error
        except _SAID:
            raise
        except Exception as error:
            what = str(error) if isinstance(error, HeadwaterError) else repr(error)
            raise Unavailable(f"the source failed, and is asked again: {what}") from error
        await self._heed(answer.term)
        if self._told is not None and answer.term != self._told.term:
            raise NotFound(
                f"the leader of term {answer.term} answers to a session of term "
                f"{self._told.term}: register again"
            )
        return answer
