"""An estimate of the cost of a stream's requests, from which the defaults follow.

    a producer   a flush puts the batch and appends its entry: two writes, or one if the batch is
                 small enough to be stored in its entry
    a reader     a poll that finds nothing is two reads, and sometimes a third that checks the
                 floor; polls back off to one in five seconds

The v1 format cannot store batches in entries. Storage, transfer, contention and failures are not
included: a producer that shares its partition makes more requests.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.buffer.stream.config import LINGER_MS, Format
from headwater.store.stats import PRICE_PER_THOUSAND

MONTH_S: Final = 30 * 86_400
"""A month of 30 days."""
IDLE_POLL_S: Final = 5.0
"""The longest interval between the polls of an idle reader."""
READS_PER_POLL: Final = 2.5

_WRITES_PER_FLUSH: Final = 2.0
_INLINE_WRITES_PER_FLUSH: Final = 1.0
# Besides flushes, rounded up: for each chunk of 256 entries a write of end.json and a read of the
# floor, and the producer's mark, which is renewed every ten minutes.
_OTHER_WRITES_PER_S: Final = 1 / 60
_OTHER_READS_PER_S: Final = 2 / 60


class CostEstimate(msgspec.Struct, frozen=True):
    """US dollars a month."""

    producer_usd: float
    """One producer on one partition, with a flush at every interval."""
    small_producer_usd: float
    """The same, with batches that are stored in their entries."""
    idle_reader_usd: float
    """One reader of one partition without new records."""
    linger_ms: int


def estimate_cost(
    *,
    linger_ms: int = LINGER_MS,
    format: Format = "native",
    scheme: str = "s3",
) -> CostEstimate:
    """The price of the requests of a producer and an idle reader of one partition.

    Batches are taken to end with their interval, not because they are full.
    """
    write_usd, read_usd = PRICE_PER_THOUSAND.get(scheme, (0.0, 0.0))
    flushes_per_s = 1000 / max(linger_ms, 1)

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
