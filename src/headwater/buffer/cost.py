"""What a stream's requests cost: an estimate, and why the defaults are what they are.

    a producer   a flush puts the batch and appends its entry: two writes, or one where the batch is
                 small enough to ride in its entry
    a reader     a poll that finds nothing is two reads, now and then a third that looks whether
                 the floor has passed it; polls back off to one in five seconds

The published v1 format has no entries to ride in. Storage and transfer are not counted, nor is what
contends or fails: a producer that is not alone on its partition makes more requests.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.buffer.stream.config import BATCH_BYTES, LINGER_MS, Format
from headwater.store.attempts import PRICE_PER_THOUSAND

MONTH_S: Final = 30 * 86_400
"""A month of 30 days."""
IDLE_POLL_S: Final = 5.0
"""How far an idle reader backs off."""
READS_PER_POLL: Final = 2.5

_WRITES_PER_FLUSH: Final = 2.0
_INLINE_WRITES_PER_FLUSH: Final = 1.0
# Beside the flushes, rounded up: for each chunk of 256 entries its note in end.json and a look at
# the floor, and a mark renewed every ten minutes.
_OTHER_WRITES_PER_S: Final = 1 / 60
_OTHER_READS_PER_S: Final = 2 / 60


class CostEstimate(msgspec.Struct, frozen=True):
    """US dollars a month."""

    producer_usd: float
    """One producer that has something to flush at every interval, on one partition."""
    small_producer_usd: float
    """The same, with batches that ride in their entries."""
    idle_reader_usd: float
    """One reader of one partition to which nothing comes."""
    linger_ms: int


def estimate_cost(
    *,
    linger_ms: int = LINGER_MS,
    format: Format = "native",
    scheme: str = "s3",
    bytes_per_s: float = 0.0,
    batch_bytes: int = BATCH_BYTES,
) -> CostEstimate:
    """The requests' price for a producer and an idle reader of one partition.

    `bytes_per_s` counts where it fills batches before the interval is over.
    """
    write_usd, read_usd = PRICE_PER_THOUSAND.get(scheme, (0.0, 0.0))
    flushes_per_s = max(1000 / max(linger_ms, 1), bytes_per_s / max(batch_bytes, 1))

    def producer_usd(writes_per_flush: float) -> float:
        writes_per_s = flushes_per_s * writes_per_flush + _OTHER_WRITES_PER_S
        return _monthly(writes_per_s, write_usd) + _monthly(_OTHER_READS_PER_S, read_usd)

    small = _WRITES_PER_FLUSH if format == "v1" else _INLINE_WRITES_PER_FLUSH
    return CostEstimate(
        producer_usd=producer_usd(_WRITES_PER_FLUSH),
        small_producer_usd=producer_usd(small),
        idle_reader_usd=_monthly(READS_PER_POLL / IDLE_POLL_S, read_usd),
        linger_ms=linger_ms,
    )


def _monthly(requests_per_s: float, usd_per_thousand: float) -> float:
    return requests_per_s * MONTH_S / 1000 * usd_per_thousand
