"""What bytes are that are not what they were said to be."""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from headwater.buffer.queue.v1 import batch_format, manifest_format
from headwater.cli.advice import advice_for, command
from headwater.cli.inspection.report import Problem
from headwater.core.errors import Corrupt, HeadwaterError
from headwater.tier.event_codec import decode_event
from headwater.tier.segments.footer import PARQUET_MAGIC, is_sealed


class Kind(NamedTuple):
    """What an object is, and which word after `inspect` shows it, if any does."""

    what: str
    word: str = ""


_BEGINNINGS: Final[dict[bytes, Kind]] = {
    b"HWB1": Kind("a native batch", "batch"),
    b"HWC": Kind("a chunk of a native queue", "queue"),
    b"HWA1": Kind("a segment of acknowledged entries of a published v1 queue", "queue"),
    b'{"register":': Kind("a register", "queue"),
    b"HWQ1": Kind("an entry of a numbered sequence"),
    b"HWF1": Kind("a frame of an append-only file"),
    b'{"dead_letter":': Kind("a dead letter, which is JSON and says itself what it tells"),
    b"RDLW": Kind("a segment of a log", "wal"),
    b"HWE1": Kind("an event of the tier's log", "event"),
    b"HWT1": Kind("a snapshot of the tier's events", "event"),
    b"HWX1": Kind("the index of a segment of a log, which is made again when it is gone"),
    b"PAR1": Kind("a Parquet file"),
    b"ARROW1": Kind("an Arrow file"),
}


def recognise(data: bytes) -> Kind | None:
    """What these bytes look like; None if that cannot be told."""
    if data.startswith(PARQUET_MAGIC) and is_sealed(data):
        return Kind("a segment of the tier", "segment")
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    with contextlib.suppress(HeadwaterError):
        manifest_format.decode_manifest(data)
        return Kind("a published v1 manifest", "manifest")
    with contextlib.suppress(HeadwaterError):
        batch_format.decode_batch(data)
        return Kind("a published v1 batch", "batch")
    with contextlib.suppress(HeadwaterError):
        decode_event(data)
        return Kind("a metadata event", "event")
    return None


def empty(asked: str) -> Problem:
    """That there are no bytes: no object of the buffer is written so."""
    part = {"queue": "part of a queue", "wal": "segment of a log", "event": "metadata event"}.get(
        asked, asked
    )
    return Problem(
        "length",
        f"it has no bytes: no {part} is written so, so it was cut off, or something else made it",
        None,
        advice_for(Corrupt("")),
        "Corrupt",
    )


def mistaken(data: bytes, asked: str) -> Problem | None:
    """That these bytes are something else than was asked for, if they are."""
    kind = recognise(data)
    if kind is None or kind.word == asked:
        return None
    advice = f"Look at it with: {command()} inspect {kind.word} …" if kind.word else None
    message = f"this is no part of a {asked}: it looks like {kind.what}"
    if asked == "wal":
        message = f"this is no segment of a log: it looks like {kind.what}"
    elif asked != "queue":
        message = f"this is no {asked}: it looks like {kind.what}"
    return Problem("kind", message, 0, advice, "Corrupt")
