"""The settings of a producer, and its metrics. docs/producer.md lists both for users.

Kafka's spellings of the settings are accepted as well. Settings of Kafka's producers that have no
meaning here are refused with what to use instead, unless what they ask for is always so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from headwater.buffer import metric_names
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import Counters
from headwater.buffer.stream import Stream
from headwater.core import limits
from headwater.core.errors import Refused
from headwater.core.metrics import Histogram, Metrics
from headwater.core.settings import SettingNames, parse_choice, parse_whole_number

BUFFER_BYTES: Final = 64 * limits.MIB
BUFFER_CALLS: Final = limits.BATCH_MAX_CALLS


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
    max_block_ms: int | None = 60_000
    max_in_flight: int = 8
    partitioner: str = "key"
    delivery_timeout_ms: int = 120_000


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
_CHOICES: Final = {
    "on_full": ("wait", "fail"),
    "on_failure": ("continue", "stop"),
    "partitioner": ("key", "round_robin"),
    "compression": tuple(kind.name.lower() for kind in Compression),
}
_SERIALIZED: Final = "keys and values are bytes or text, rows are dicts or Arrow columns"
_NAMES: Final = SettingNames(
    "a producer",
    Settings.__struct_fields__,
    aliases={
        "batch.size": "batch_bytes",
        "buffer.memory": "buffer_bytes",
        "max.in.flight.requests.per.connection": "max_in_flight",
        "compression.type": "compression",
    },
    fixed={
        "acks": (("all", "-1"), "records are accepted once they are durable in the store"),
        "enable.idempotence": (("true",), "a batch is appended once, whatever is tried again"),
        "retries": (("2147483647",), "a batch is tried again until delivery_timeout_ms is over"),
    },
    refused={
        "bootstrap.servers": "there are no brokers; open a producer with the address of a store",
        "client.id": "use producer_id, which a producer is opened with",
        "key.serializer": _SERIALIZED,
        "max.request.size": "use batch_bytes, the size of a batch",
        "partitioner.class": "use partitioner: key or round_robin",
        "request.timeout.ms": "use delivery_timeout_ms, the time for all tries of a batch together",
        "retry.backoff.ms": "pauses between tries grow by themselves until delivery_timeout_ms",
        "transactional.id": "use producer_id; Spark's sink writes transactions",
        "value.serializer": _SERIALIZED,
    },
)


def parse_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values of these settings by our names. `Refused` for what no stream accepts."""
    chosen: dict[str, Any] = {}
    for name, (spelling, value) in _NAMES.resolve(settings).items():
        if name in _CHOICES:
            chosen[name] = parse_choice(spelling, value, _CHOICES[name])
        elif value is None and name == "max_block_ms":
            chosen[name] = None
        else:
            least, most = _BOUNDS[name]
            chosen[name] = parse_whole_number(spelling, value, at_least=least, at_most=most)
    return chosen


def settings_for(stream: Stream, settings: Mapping[str, Any]) -> Settings:
    """These settings, with the stream's for those that are absent."""
    chosen: dict[str, Any] = {
        "linger_ms": stream.linger_ms,
        "batch_bytes": stream.batch_bytes,
        "compression": stream.config.compression,
        **parse_settings(settings),
    }
    chosen["compression"] = Compression[chosen["compression"].upper()]
    if stream.config.format == "v1" and chosen["compression"] is Compression.LZ4:
        raise Refused("the published v1 format knows compression none and zstd, not lz4")
    return Settings(**chosen)


class ProducerMetrics(Metrics):
    """The metrics of one producer; `published()` has the names of the published buffer."""

    computed = ("manifest_writes", "manifest_conflicts")
    exported: ClassVar = metric_names.PRODUCER

    def __init__(self, counters: Sequence[Counters]) -> None:
        self._counters = counters
        self.batches_flushed = 0
        """Batches that were accepted."""
        self.entries_flushed = 0
        """Records in them."""
        self.bytes_flushed = 0
        """Their size before encoding."""
        self.bytes_written = 0
        """Their size as it was written."""
        self.flush_duration_seconds = Histogram()
        """From sealing to acceptance."""

    @property
    def manifest_writes(self) -> int:
        """Conditional writes to the queues."""
        return sum(counters.writes for counters in self._counters)

    @property
    def manifest_conflicts(self) -> int:
        """Conditional writes that lost a race."""
        return sum(counters.conflicts for counters in self._counters)

    def published(self) -> dict[str, object]:
        """The metrics under the names that dashboards of the published buffer use."""
        names = metric_names.PUBLISHED_PRODUCER
        return {name: getattr(self, attribute) for attribute, name in names.items()}
