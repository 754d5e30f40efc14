"""How one check of the doctor ended."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "note", "wrong"]


class Finding(msgspec.Struct, frozen=True):
    """What was looked at, what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    cure: str = ""


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", found)


def note(name: str, found: str, cure: str) -> Finding:
    """Something will not work that not everybody needs."""
    return Finding(name, "note", found, cure)


def wrong(name: str, found: str, cure: str) -> Finding:
    """Something will not work."""
    return Finding(name, "wrong", found, cure)
