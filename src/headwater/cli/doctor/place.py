"""A store: whether it can be reached, keeps its promises, agrees on the time, and is readable."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from typing import Final

from headwater.cli.doctor.finding import Finding, note, ok, wrong
from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.store import Store, check_store

SKEW_MS_MAX: Final = 5_000
"""Retention, leases and signatures lean on clocks that agree about this well."""
STREAMS_MAX: Final = 100
PREFIX: Final = "headwater-doctor"


def check_credentials(scheme: str, environment: Mapping[str, str]) -> Finding:
    """Where a store's credentials would come from, by name."""
    name = "credentials"
    if scheme == "s3":
        return _check_aws(name, environment)
    if scheme == "gs":
        path = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
        if path and not os.path.isfile(path):
            return wrong(
                name,
                f"GOOGLE_APPLICATION_CREDENTIALS names {path}, which is not there",
                "put the file there, or unset the variable",
            )
        return ok(name, "GOOGLE_APPLICATION_CREDENTIALS" if path else "the machine's own account")
    if scheme == "az":
        found = [one for one in environment if one.startswith("AZURE_")]
        if not found:
            return note(
                name,
                "no AZURE_… variable is set: the machine's own identity is used",
                "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or "
                "AZURE_STORAGE_SAS_TOKEN where it has none",
            )
        return ok(name, ", ".join(sorted(found)))
    return ok(name, "none needed")


def _check_aws(name: str, environment: Mapping[str, str]) -> Finding:
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    given = [key for key in keys if environment.get(key)]
    if len(given) == 1:
        missing = next(key for key in keys if key not in given)
        return wrong(name, f"{given[0]} is set and {missing} is not", f"set {missing} as well")
    if given:
        return ok(name, f"{' and '.join(keys)} of the environment")
    if environment.get("AWS_PROFILE"):
        return ok(name, f"profile {environment['AWS_PROFILE']} (AWS_PROFILE)")
    return note(
        name,
        "neither AWS_ACCESS_KEY_ID nor AWS_PROFILE is set: the machine's own role is used",
        "set them where it has no role; on executors too, since they are never sent there",
    )


async def check_place(store: Store) -> AsyncIterator[Finding]:
    """Reach, conditional writes, clock and streams; a store that does not answer is all."""
    reached = await _check_reach(store)
    yield reached
    if reached.status == "wrong":
        return
    yield await _check_promises(store)
    yield await _check_clock(store)
    async for finding in _check_streams(store):
        yield finding


async def _check_reach(store: Store) -> Finding:
    try:
        await anext(store.list(PREFIX), None)
    except HeadwaterError as error:
        return wrong("store", f"{type(error).__name__}: {error}", _reach_cure(store))
    return ok("store", f"answers at {store.url.partition('?')[0]}")


def _reach_cure(store: Store) -> str:
    if store.is_local:
        return "make the folder readable and writable for this user"
    return (
        "check the address and option endpoint=…, the network, and that the credentials named "
        "above may list, read, write and delete there"
    )


async def _check_promises(store: Store) -> Finding:
    name = "conditional writes"
    try:
        report = await check_store(
            store,
            prefix=PREFIX,
            writers=3,
            increments=5,
            racers=8,
            keys=2,
            listed=0,
            large_bytes=0,
        )
    except HeadwaterError as error:
        cure = "let these credentials write and delete below this address"
        return wrong(name, f"{type(error).__name__}: {error}", cure)
    if not report.safe:
        return wrong(name, report.verdict, "see it whole: headwater store check URL")
    return ok(name, f"{len(report.named('pass'))} quick checks passed")


async def _check_clock(store: Store) -> Finding:
    key = f"{PREFIX}/clock-{runtime.new_ulid()}"
    before_ms = runtime.wall_ms()
    try:
        await store.put(key, b"what time is it?")
        after_ms = runtime.wall_ms()
        there_ms = (await store.head(key)).modified_ms
        await store.delete(key)
    except HeadwaterError as error:
        cure = "let these credentials write and delete below this address"
        return wrong("clock", f"{type(error).__name__}: {error}", cure)
    # A store may cut its times to whole seconds.
    skew_ms = max(before_ms - 1000 - there_ms, there_ms - after_ms, 0)
    if skew_ms > SKEW_MS_MAX:
        return wrong(
            "clock",
            f"this machine and the store disagree by {skew_ms / 1000:,.0f} s",
            "let this machine keep its time (chrony, systemd-timesyncd)",
        )
    return ok("clock", "agrees with the store's")


async def _check_streams(store: Store) -> AsyncIterator[Finding]:
    from headwater.buffer.stream import stream_names

    try:
        names = await stream_names(store)
    except HeadwaterError as error:
        cure = "look at what is there: headwater store ls URL"
        yield wrong("streams", f"{type(error).__name__}: {error}", cure)
        return
    if not names:
        yield note("streams", "none there", "make one: headwater stream create URL NAME")
    for name in names[:STREAMS_MAX]:
        yield await _check_stream(store, name)
    if len(names) > STREAMS_MAX:
        yield note(
            "streams",
            f"{len(names):,} there, the first {STREAMS_MAX} looked at",
            "look at others one by one: headwater stream describe URL NAME",
        )


async def _check_stream(store: Store, name: str) -> Finding:
    from headwater.buffer.stream import open_stream
    from headwater.cli.queue_order import disorder
    from headwater.core.errors import NotFound

    try:
        stream = await open_stream(store, name)
        states = [await stream.looker(one).state() for one in range(stream.partitions)]
    except NotFound:
        return ok(f"stream {name}", "deleted")
    except HeadwaterError as error:
        cure = f"headwater stream describe URL {name} says more"
        return wrong(f"stream {name}", f"{type(error).__name__}: {error}", cure)
    for partition, state in enumerate(states):
        problem = disorder(state)
        if problem is not None:
            cure = f"headwater inspect queue URL --stream {name} --partition {partition}"
            return wrong(f"stream {name}", f"partition {partition}: {problem}", cure)
    pending = sum(state.pending for state in states)
    return ok(f"stream {name}", f"readable: {len(states)} partitions, {pending:,} batches pending")
