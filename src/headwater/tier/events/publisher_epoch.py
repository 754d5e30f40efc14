"""What Headwater puts into the custom metadata of its own events, of 128 bytes at most.

    HWM1 | u64 epoch of the publisher | what the room of segments keeps there

Custom metadata that begin otherwise, or none, are those of somebody who knows nothing of
publishers' epochs: a Kafka broker, or a plugin for one.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headwater.core.errors import Corrupt, LimitExceeded, Refused
from headwater.tier.events.event import (
    CUSTOM_METADATA_MAX_BYTES,
    MetadataEvent,
    PartitionDelete,
)

MAGIC: Final = b"HWM1"
EPOCH_MAX: Final = (1 << 64) - 1
_HEAD: Final = Struct(">4sQ")
PAYLOAD_MAX_BYTES: Final = CUSTOM_METADATA_MAX_BYTES - _HEAD.size


def check_epoch(publisher_epoch: int | None) -> None:
    """Raise `Refused` for an epoch that cannot be written."""
    if publisher_epoch is not None and not 0 <= publisher_epoch <= EPOCH_MAX:
        raise Refused(f"epoch {publisher_epoch} does not fit into 64 bits")


def stamp(publisher_epoch: int, payload: bytes = b"") -> bytes:
    """Custom metadata that say under which epoch the event was published."""
    check_epoch(publisher_epoch)
    if len(payload) > PAYLOAD_MAX_BYTES:
        raise LimitExceeded(
            f"custom metadata have room for {PAYLOAD_MAX_BYTES} bytes beside the publisher's "
            f"epoch, not {len(payload):,}"
        )
    return _HEAD.pack(MAGIC, publisher_epoch) + payload


def unstamp(custom_metadata: bytes | None) -> tuple[int | None, bytes]:
    """The publisher's epoch, if there is one, and the rest."""
    if custom_metadata is None or not custom_metadata.startswith(MAGIC):
        return None, custom_metadata or b""
    if len(custom_metadata) < _HEAD.size:
        raise Corrupt(
            f"custom metadata begin with HWM1 and end after {len(custom_metadata)} bytes: "
            f"{_HEAD.size} are needed for the publisher's epoch"
        )
    epoch: int = _HEAD.unpack_from(custom_metadata)[1]
    return epoch, custom_metadata[_HEAD.size :]


def publisher_epoch_of(event: MetadataEvent, beside: int | None = None) -> int | None:
    """Under which epoch an event was published; None if it does not say.

    An event about a whole partition has no custom metadata: its log keeps the epoch beside it.
    """
    if isinstance(event, PartitionDelete):
        return beside
    return unstamp(event.custom_metadata)[0]
