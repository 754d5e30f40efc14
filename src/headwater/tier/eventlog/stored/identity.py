"""Which log stands under a prefix, and how many partitions it has. Both stay as they are.

A log that was begun anew under another prefix says so, and is opened and followed no more: whoever
went on with it would merge, remove and scrub by what it knows, and the other one lists the same
objects.

A log is made in three steps, and whoever opens one that was left half made goes on: `log.json` with
its id, the floors of all partitions, `log.json` saying that they are there. So a floor that is
missing later is known to be lost, and is not taken for a partition in which nothing ever was.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from typing import Final

import msgspec

from headwater.core import limits, runtime
from headwater.core.errors import Damaged, NotSupported, Refused
from headwater.store import Register, Store
from headwater.tier.errors import LogRenewed
from headwater.tier.eventlog.stored.floor import FloorKeeper
from headwater.tier.eventlog.stored.layout import Place, log_key

FORMAT = 1
_log: Final = logging.getLogger("headwater")


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands in `log.json`."""

    log_format: int
    log_id: uuid.UUID
    partition_count: int
    made: bool
    renewed_to: str | None = None
    """The prefix of the log that was begun with what this one comes to: nobody opens this one."""


async def open_record(
    store: Store, prefix: str, partition_count: int, log_id: uuid.UUID | None
) -> LogRecord:
    """The log under a prefix, made if there is none; `Refused` if it is not the one expected."""
    if not 1 <= partition_count <= limits.EVENT_PARTITIONS_MAX:
        raise Refused(
            f"a log of events has 1 to {limits.EVENT_PARTITIONS_MAX:,} partitions "
            f"(EVENT_PARTITIONS_MAX), not {partition_count}"
        )
    register = Register(store, log_key(prefix), LogRecord)
    new_id = log_id or uuid.UUID(bytes=runtime.new_token())
    fresh = LogRecord(FORMAT, new_id, partition_count, made=False)
    record = (await register.update(lambda now: now or fresh)).value
    _check(register.key, record, partition_count, log_id)
    if not record.made:
        await _create_floors(store, prefix, record)
        # On top of what is there by then: others may have made the log, and renewed it since.
        record = (await register.update(functools.partial(_made, record))).value
        _check(register.key, record, partition_count, log_id)
    return record


def _made(before: LogRecord, now: LogRecord | None) -> LogRecord:
    return msgspec.structs.replace(now or before, made=True)


def _check(key: str, record: LogRecord, partition_count: int, log_id: uuid.UUID | None) -> None:
    if record.log_format != FORMAT:
        raise NotSupported(
            f"{key} is of format {record.log_format}; this version reads {FORMAT}: upgrade "
            "Headwater"
        )
    if record.renewed_to is not None:
        raise LogRenewed.to(record.renewed_to, key)
    if record.partition_count != partition_count:
        raise Refused(
            f"{key}: the log has {record.partition_count} metadata partitions, not "
            f"{partition_count}; with another number streams would lie in other partitions: open "
            f"it with {record.partition_count}"
        )
    if log_id is not None and record.log_id != log_id:
        raise Refused(
            f"{key}: this is log {record.log_id}, not {log_id}: what is known of one says nothing "
            "about the other"
        )


async def mark_renewed(store: Store, prefix: str, renewed_to: str) -> None:
    """Let nobody open or follow the log under a prefix any more: it goes on under another one."""
    register = Register(store, log_key(prefix), LogRecord)
    record = (await register.read()).value
    # Those who follow and publish look at floors, and those who come at the record.
    for partition in range(record.partition_count):
        floors = FloorKeeper(
            store, Place(prefix, partition).floor, record.log_id, record.partition_count
        )
        try:
            await floors.mark_renewed(renewed_to)
        except Damaged as damage:
            # Whoever looks at it is refused for that.
            _log.info("%s stays as it is: %s", floors.key, damage)
    await register.update(lambda now: msgspec.structs.replace(now or record, renewed_to=renewed_to))


async def _create_floors(store: Store, prefix: str, record: LogRecord) -> None:
    count = record.partition_count
    for first in range(0, count, limits.EVENT_MARKS_AT_ONCE):
        await asyncio.gather(
            *(
                FloorKeeper(store, Place(prefix, partition).floor, record.log_id, count).create()
                for partition in range(first, min(count, first + limits.EVENT_MARKS_AT_ONCE))
            )
        )
