"""How a producer gathers, waits and gives up. Kafka's spellings are understood as well.

| setting | Kafka's spelling | default |
| --- | --- | --- |
| `linger_ms` | `linger.ms` | the stream's, else 1,000, or 100 on a local store |
| `batch_bytes` | `batch.size` | the stream's, else 8 MiB |
| `buffer_bytes` | `buffer.memory` | 64 MiB |
| `buffer_calls` | | 1,048,576 |
| `on_full` | | `wait`; or `fail` |
| `on_failure` | | `continue`; or `stop`, as a producer with a `producer_id` always does |
| `max_block_ms` | `max.block.ms` | 60,000; None waits without end |
| `max_in_flight` | `max.in.flight.requests.per.connection` | 8 uploads |
| `compression` | `compression.type` | the stream's |
| `partitioner` | | `key`; or `round_robin` |
| `delivery_timeout_ms` | `delivery.timeout.ms` | 120,000 |

Kafka's `acks=all`, `enable.idempotence=true` and `retries=2147483647` are taken: it is always so.
Other values of them are refused, as are other settings of Kafka's producers, with what is here
instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headwater.buffer.compression import Compression
from headwater.buffer.stream import Stream
from headwater.core import limits
from headwater.core.errors import Refused

BUFFER_BYTES: Final = 64 * limits.MIB
BUFFER_CALLS: Final = limits.BATCH_MAX_CALLS
MAX_BLOCK_MS: Final = 60_000
MAX_IN_FLIGHT: Final = 8
DELIVERY_TIMEOUT_MS: Final = 120_000

KAFKA_NAMES: Final = {
    "linger.ms": "linger_ms",
    "batch.size": "batch_bytes",
    "buffer.memory": "buffer_bytes",
    "max.block.ms": "max_block_ms",
    "max.in.flight.requests.per.connection": "max_in_flight",
    "compression.type": "compression",
    "delivery.timeout.ms": "delivery_timeout_ms",
}
ALWAYS_SO: Final = {
    "acks": (("all", "-1"), "records are accepted once they are durable in the store"),
    "enable.idempotence": (("true",), "a batch is appended once, whatever is tried again"),
    "retries": (("2147483647",), "a batch is tried again until delivery_timeout_ms is over"),
}
"""What Kafka's producers may choose and ours do not: the values that are meant, and why."""
_SERIALIZED: Final = "keys and values are bytes or text, rows are dicts or Arrow columns"
INSTEAD: Final = {
    "bootstrap.servers": "there are no brokers: a producer is opened with the address of a store",
    "client.id": "use producer_id, which a producer is opened with",
    "key.serializer": _SERIALIZED,
    "max.request.size": "use batch_bytes, the size of a batch",
    "partitioner.class": "use partitioner: key or round_robin",
    "request.timeout.ms": "use delivery_timeout_ms, the time for all tries of a batch together",
    "retry.backoff.ms": "pauses between tries grow by themselves; delivery_timeout_ms ends them",
    "transactional.id": "use producer_id; what is written in one transaction, Spark's sink writes",
    "value.serializer": _SERIALIZED,
}
"""Settings of Kafka's producers that mean nothing here: what is here instead."""
_ON_FULL: Final = ("wait", "fail")
_ON_FAILURE: Final = ("continue", "stop")
_PARTITIONERS: Final = ("key", "round_robin")
# What a batch may hold beside its records is within the mebibyte that its own limit leaves.
_BATCH_BYTES_MAX: Final = limits.BATCH_MAX_BYTES - limits.MIB
_BOUNDS: Final = {
    "linger_ms": (0, 86_400_000),
    "batch_bytes": (1, _BATCH_BYTES_MAX),
    "buffer_bytes": (1, 1 << 50),
    "buffer_calls": (1, 1 << 50),
    "max_block_ms": (0, 1 << 50),
    "max_in_flight": (1, 1024),
    "delivery_timeout_ms": (1, 1 << 50),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a producer, complete and checked."""

    linger_ms: int
    batch_bytes: int
    compression: Compression
    buffer_bytes: int = BUFFER_BYTES
    buffer_calls: int = BUFFER_CALLS
    on_full: str = "wait"
    on_failure: str = "continue"
    """Whether records are still accepted that come after what was dropped, in its partition."""
    max_block_ms: int | None = MAX_BLOCK_MS
    max_in_flight: int = MAX_IN_FLIGHT
    partitioner: str = "key"
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS


def settings_for(stream: Stream, given: Mapping[str, Any]) -> Settings:
    """What was given, over what the stream says; `Refused` says what is wrong."""
    chosen: dict[str, Any] = {
        "linger_ms": stream.linger_ms,
        "batch_bytes": stream.batch_bytes,
        "compression": stream.compression,
    }
    chosen |= _spelled(given)
    for name in _BOUNDS:
        if name in chosen:
            chosen[name] = _number(name, chosen[name])
    _one_of("on_full", chosen.get("on_full", "wait"), _ON_FULL)
    _one_of("on_failure", chosen.get("on_failure", "continue"), _ON_FAILURE)
    _one_of("partitioner", chosen.get("partitioner", "key"), _PARTITIONERS)
    chosen["compression"] = _compression(chosen["compression"])
    if stream.config.format == "v1" and chosen["compression"] is Compression.LZ4:
        raise Refused("the published v1 format knows compression none and zstd, not lz4")
    return Settings(**chosen)


def _spelled(given: Mapping[str, Any]) -> dict[str, Any]:
    known = Settings.__struct_fields__
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in ALWAYS_SO:
            meant, why = ALWAYS_SO[name]
            if str(value).lower() not in meant:
                raise Refused(f"{name} is always {meant[0]}, not {value!r}: {why}")
            continue
        ours = KAFKA_NAMES.get(name, name)
        if name in INSTEAD:
            raise Refused(f"{name} is Kafka's, and no setting of a producer here: {INSTEAD[name]}")
        if ours not in known:
            near = difflib.get_close_matches(name, [*known, *KAFKA_NAMES], n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise Refused(f"{name!r} is no setting of a producer{hint}")
        if ours in found:
            raise Refused(f"{ours} is given twice: as itself and in Kafka's spelling")
        found[ours] = value
    return found


def _number(name: str, value: Any) -> int | None:
    if value is None and name == "max_block_ms":
        return None
    low, high = _BOUNDS[name]
    try:
        # Kafka's configurations are text. A bool is an int to Python and a slip of the pen here.
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if not low <= number <= high:
        raise Refused(f"{name} is {value!r}: a whole number from {low:,} to {high:,}")
    return number


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise Refused(f"{name} is {value!r}: it is {' or '.join(allowed)}")


def _compression(value: Any) -> Compression:
    if isinstance(value, Compression):
        return value
    try:
        return Compression[str(value).upper()]
    except KeyError:
        names = ", ".join(kind.name.lower() for kind in Compression)
        raise Refused(f"compression is {value!r}: it is one of {names}") from None
