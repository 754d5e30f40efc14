"""Recording what a stream carries: its shape, and the columns that producers bring.

Before the first append that carries something, the stream's register says what: opaque values, or
these columns in these types. What it says only ever grows. A producer that knows an older state of
it writes what every later state takes in: fewer columns, narrower types.

A change is all or nothing: records of which one column does not fit record none of their others.
What cannot be recorded is not refused here. The stream stays as it is, and fitting the records to
it says what is wrong (fit.py): there is one place that refuses.

An alter that replaces a type first reserves a version, and writes it once no older one can be
appended. Who has records of an older one meanwhile waits for that version, and writes it itself
if the alter does not: it may have died.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec
import pyarrow as pa

from headwater.buffer.records import RESERVED, VALUE
from headwater.buffer.stream.config import SchemaVersion, StreamConfig
from headwater.buffer.stream.register import StreamRegister
from headwater.buffer.stream.schema import arrow_schema, check_columns, schema_version
from headwater.buffer.widening import common_type, relaxed
from headwater.core import runtime
from headwater.core.errors import NotFound, OutcomeUnknown, RolledBack, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import Store

REPLACING_S: Final = 30.0
"""How long an alter that replaces a type may take before those who wait for it withdraw it."""
_PATIENT: Final = RetryPolicy(attempts=1 << 62, deadline_s=float("inf"))


def taking_in(now: StreamConfig, records: pa.Schema, *, added_ms: int) -> StreamConfig:
    """The stream that also carries records of this schema; itself if it does, or cannot."""
    if now.format == "v1":
        return now
    if VALUE in records.names:
        return now if now.shape else msgspec.structs.replace(now, shape="opaque")
    columns = [field for field in records if field.name not in RESERVED]
    if not columns or now.shape == "opaque" or (now.schemas and not now.is_inferred):
        return now
    merged = _merged(now, columns)
    if merged is None or (now.schemas and merged == arrow_schema(now.schemas[-1])):
        return now
    check_columns(merged.names)
    return msgspec.structs.replace(now, shape="typed", schemas=_versions(now, merged, added_ms))


def _merged(now: StreamConfig, columns: list[pa.Field]) -> pa.Schema | None:
    """The columns of the stream and these, in types that hold both; None if a type does not."""
    known = {} if not now.schemas else {f.name: f.type for f in arrow_schema(now.schemas[-1])}
    for field in columns:
        before = known.get(field.name)
        kind = relaxed(field.type) if before is None else common_type(before, relaxed(field.type))
        if kind is None:
            return None
        known[field.name] = kind
    return pa.schema([pa.field(name, kind) for name, kind in known.items()])


def _versions(now: StreamConfig, merged: pa.Schema, added_ms: int) -> list[SchemaVersion]:
    """With one more inferred version, in the place of an inferred one before it.

    One for each of ten thousand columns that came one by one would be no register any more.
    """
    number = now.next_schema_version
    return [schema_version(number, merged, added_ms=added_ms, origin="inferred")]


def withdrawing(now: StreamConfig, floor: int, *, added_ms: int) -> StreamConfig:
    """The stream with the columns it has, also where a replacement of types was to be `floor`.

    Whoever was about to replace them finds that the version is taken.
    """
    latest = now.schemas[-1]
    if now.schema_floor != floor or latest.version >= floor:
        return now
    again = SchemaVersion(floor, added_ms, latest.origin, latest.columns)
    before = [one for one in now.schemas if one.origin == "declared"]
    return msgspec.structs.replace(now, schemas=[*before, again])


async def settled_schema(
    store: Store, before: StreamConfig, floor: int, *, is_patient: bool
) -> StreamConfig:
    """The stream `before` once its schema has version `floor`: wait for it, or withdraw it.

    Whoever was to write that version may have died. It can only do so while its number is free.
    With `is_patient`, a store that does not answer is asked until it does.
    """
    register = StreamRegister(store, before.name)
    pauses = _PATIENT.start()
    reserved, until_s = floor, runtime.monotonic_s() + REPLACING_S
    while True:
        try:
            if runtime.monotonic_s() < until_s:
                found = await register.read_live(writing=True)
            else:
                withdraw = functools.partial(
                    withdrawing, floor=reserved, added_ms=runtime.wall_ms()
                )
                found = await register.update_live(before.id, withdraw)
        except (Unavailable, OutcomeUnknown):
            if not is_patient:
                raise
            await pauses.pause()
            continue
        if found.id != before.id:
            raise NotFound(f"stream {before.name!r} was deleted, and made again")
        if found.schemas and found.schemas[-1].version >= floor:
            return found
        if found.schema_floor < floor:
            raise RolledBack(
                f"stream {before.name!r}: version {floor} of its schema was reserved, and its "
                "stream.json does not say so any more: it went back. Restore it from a backup"
            )
        if found.schema_floor > reserved:
            # A later alter, which has as long: if it dies as well, it is to be withdrawn instead.
            reserved, until_s = found.schema_floor, runtime.monotonic_s() + REPLACING_S
        await pauses.pause()
