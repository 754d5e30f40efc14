"""A register: a value in one object, changed by read, change, write-if-unchanged.

Each caller learns whether its own change landed. The object is JSON:

    {"register":1,"id":…,"revision":7,"token":…,"history":[…],"crc32":…,"value":…}

`revision` grows by one with each change, `token` is the nonce of the change that made it, `history`
has the tokens of the earlier revisions, newest first. `id` is the token of the first change: a
register that is deleted and created again has another.

Always holds:

- each revision is written once: a write names the version it replaces, and no two contents
  ever have the same bytes (the nonce), and never the same version;
- so whether a change that was to become revision r landed is a lasting fact: the token at r is
  its own or another's. The history has that fact for REGISTER_HISTORY changes. After more
  changes the caller gets `OutcomeUnknown` instead of a guess. Searching for the change's
  *effect* in the value is the obvious alternative; it fails when another writer has undone the
  effect meanwhile, as a queue's consumer does with every entry;
- a register that vanishes, goes back or is replaced by another one is reported as such.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from headwater.core import limits, runtime
from headwater.core.errors import (
    Conflict,
    Contended,
    Corrupt,
    LimitExceeded,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store.objects import Object, Version
from headwater.store.store import Store

T = TypeVar("T")

FORMAT: Final = 1


class Revision(msgspec.Struct, Generic[T], frozen=True):
    """A value, and the number of its revision."""

    value: T
    number: int


class _Envelope(msgspec.Struct, frozen=True):
    register: int
    id: str
    revision: int
    token: str
    history: list[str]
    crc32: str
    value: msgspec.Raw

    def token_at(self, revision: int) -> str | None:
        """The token of the change that made `revision`; None if the history does not reach it."""
        if revision == self.revision:
            return self.token
        back = self.revision - revision - 1
        return self.history[back] if 0 <= back < len(self.history) else None


class _StoredRevision(msgspec.Struct, frozen=True):
    envelope: _Envelope
    version: Version


class Register(Generic[T]):
    """One value under one key. Handles are cheap: each process may create its own."""

    def __init__(
        self,
        store: Store,
        key: str,
        kind: type[T],
        *,
        policy: RetryPolicy | None = None,
        history: int = limits.REGISTER_HISTORY,
    ) -> None:
        self._store = store
        self._key = key
        self._kind = kind
        self._policy = policy or RetryPolicy()
        self._history = history
        self._seen: tuple[str, int] | None = None
        self.writes = 0
        """Conditional writes of this handle, whatever their outcome."""
        self.conflicts = 0
        """Conditional writes that lost to another writer's."""

    @property
    def key(self) -> str:
        return self._key

    async def read(self) -> Revision[T]:
        """The present value; `NotFound` if the register was never written."""
        stored = await self._load()
        if stored is None:
            raise NotFound(f"{self._key} does not exist")
        return self._revision(stored)

    async def find(self) -> T | None:
        """The present value; None if the register was never written."""
        stored = await self._load()
        return None if stored is None else self._revision(stored).value

    async def update(self, change: Callable[[T | None], T]) -> Revision[T]:
        """Apply `change` to the present value (None if never written) and store the result.

        Returns the revision that *this* call made; other writers may have made later ones.
        `change` may be applied several times, to newer values: it must only compute. If it returns
        an equal value, or raises, nothing is written.

        `OutcomeUnknown`: the change may have landed or may still land. `Contended`: it has not
        landed and never will.
        """
        budget = self._policy.start(attempts=limits.REGISTER_ATTEMPTS)
        base = await self._load()
        lost = 0
        while True:
            value = change(None if base is None else self._revision(base).value)
            encoded = self._encode_value(value)
            if base is not None and encoded == bytes(base.envelope.value):
                return Revision(value, base.envelope.revision)
            token = runtime.new_token().hex()
            revision = 1 if base is None else base.envelope.revision + 1
            landed, base = await self._write(base, encoded, token)
            if landed:
                return Revision(value, revision)
            self.conflicts += 1
            lost += 1
            if lost > 1:
                if not await budget.pause():
                    raise Contended(f"{self._key}: not changed: other writers won {lost} times")
                # The value from before the wait is out of date: a write on top of it would lose
                # again, perhaps to more changes than the history remembers.
                base = await self._load()

    async def replace_damaged(self, value: T) -> None:
        """Overwrite an object that cannot be decoded; `Refused` if it can.

        Revisions start at 1 again. `Conflict` if another writer wrote meanwhile.
        """
        stored = await self._store.get(self._key)
        try:
            self._decode(stored)
        except Corrupt:
            token = runtime.new_token().hex()
            data = self._encode(None, self._encode_value(value), token)
            await self._store.put_if_unchanged(
                self._key, data, stored.version, token=token.encode()
            )
            return
        raise Refused(f"{self._key} can be decoded: change it with update instead")

    async def _write(
        self, base: _StoredRevision | None, encoded: bytes, token: str
    ) -> tuple[bool, _StoredRevision | None]:
        """Whether the write landed; if not, the present revision."""
        data = self._encode(base, encoded, token)
        self.writes += 1
        try:
            if base is None:
                await self._store.put_if_absent(self._key, data, token=token.encode())
            else:
                await self._store.put_if_unchanged(
                    self._key, data, base.version, token=token.encode()
                )
        except Conflict as conflict:
            current = None if conflict.current is None else self._decode(conflict.current)
            return self._settle(base, token, current, None), current
        except OutcomeUnknown as unknown:
            try:
                current = await self._load()
            except (Unavailable, Refused):
                raise unknown from None  # the failed read settles nothing
            return self._settle(base, token, current, unknown), current
        if base is None:
            self._see(token, 1)  # the token of the first change is the register's id
        else:
            self._see(base.envelope.id, base.envelope.revision + 1)
        return True, None

    def _settle(
        self,
        base: _StoredRevision | None,
        token: str,
        current: _StoredRevision | None,
        unknown: OutcomeUnknown | None,
    ) -> bool:
        """Whether the change that was to follow `base` landed, from the present revision."""
        if base is not None:
            self._refuse_older((base.envelope.id, base.envelope.revision), current)
        if current is not None:
            self._see(current.envelope.id, current.envelope.revision)
        before = 0 if base is None else base.envelope.revision
        after = 0 if current is None else current.envelope.revision
        if after == before:
            # No change followed `base` yet: a request under way may still land.
            raise OutcomeUnknown(f"{self._key}: the change may still land") from unknown
        assert current is not None
        landed_token = current.envelope.token_at(before + 1)
        if landed_token is None:
            raise OutcomeUnknown(
                f"{self._key}: {after - before} changes later the history of {self._history} no "
                "longer says whether this change landed"
            ) from unknown
        return landed_token == token

    async def _load(self) -> _StoredRevision | None:
        seen = self._seen  # before the request: its answer may be older than another task's
        try:
            stored = self._decode(await self._store.get(self._key))
        except NotFound:
            stored = None
        if seen is not None:
            self._refuse_older(seen, stored)
        if stored is not None:
            self._see(stored.envelope.id, stored.envelope.revision)
        return stored

    def _refuse_older(self, seen: tuple[str, int], stored: _StoredRevision | None) -> None:
        identity, revision = seen
        if stored is None:
            raise RolledBack(f"{self._key} was at revision {revision} and is gone")
        if stored.envelope.id != identity:
            raise RolledBack(f"{self._key} was replaced by another register of the same name")
        if stored.envelope.revision < revision:
            raise RolledBack(
                f"{self._key} went back from revision {revision} to {stored.envelope.revision}"
            )

    def _revision(self, stored: _StoredRevision) -> Revision[T]:
        try:
            value = msgspec.json.decode(stored.envelope.value, type=self._kind)
        except msgspec.ValidationError as error:
            raise Corrupt(f"{self._key}: the value does not fit: {error}") from error
        return Revision(value, stored.envelope.revision)

    def _encode_value(self, value: T) -> bytes:
        """The value's JSON, checked by decoding it: a register must never become unreadable."""
        try:
            encoded = msgspec.json.encode(value, order="sorted")
            msgspec.json.decode(encoded, type=self._kind)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            # Without the value, which may be long: the error says where it is wrong.
            raise Refused(
                f"{self._key}: this value cannot be stored as {self._kind}: {error}"
            ) from error
        return encoded

    def _encode(self, base: _StoredRevision | None, encoded: bytes, token: str) -> bytes:
        if base is None:
            head = _head(token, 1, token, [])  # the id is the token of the first change
        else:
            last = base.envelope
            history = [last.token, *last.history][: self._history]
            head = _head(last.id, last.revision + 1, token, history)
        crc = zlib.crc32(head + encoded)
        data = b'%b,"crc32":"%08x","value":%b}\n' % (head, crc, encoded)
        if len(data) > limits.REGISTER_MAX_BYTES:
            raise LimitExceeded(
                f"{self._key}: {len(data):,} bytes; REGISTER_MAX_BYTES is "
                f"{limits.REGISTER_MAX_BYTES:,}"
            )
        return data

    def _decode(self, stored: Object) -> _StoredRevision:
        return _StoredRevision(decode_envelope(self._key, stored.data), stored.version)

    def _see(self, identity: str, revision: int) -> None:
        if self._seen is None or revision > self._seen[1]:
            self._seen = (identity, revision)


def _head(identity: str, revision: int, token: str, history: list[str]) -> bytes:
    fields = msgspec.json.encode(
        {
            "register": FORMAT,
            "id": identity,
            "revision": revision,
            "token": token,
            "history": history,
        }
    )
    return fields[:-1]  # without the closing brace: the checksum and the value follow


def decode_envelope(key: str, data: bytes | memoryview) -> _Envelope:
    """The checked envelope of a register; `Corrupt` says what is wrong."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{key} is not a register: {error}") from error
    if envelope.register != FORMAT:
        raise NotSupported(
            f"{key} is a register of format {envelope.register}; this version reads format "
            f"{FORMAT}. Upgrade Headwater."
        )
    head = _head(envelope.id, envelope.revision, envelope.token, envelope.history)
    if f"{zlib.crc32(head + bytes(envelope.value)):08x}" != envelope.crc32:
        raise Corrupt(f"{key}: the checksum does not match; the file was damaged or edited by hand")
    return envelope
