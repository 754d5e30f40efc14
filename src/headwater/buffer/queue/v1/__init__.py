"""The published v1 queue: one manifest, which other implementations read and write, too.

Descriptors have sequences, LSNs and rows, although the manifest has only sequences.

    appender, consumer, reader, collector   the four interfaces of a queue; `reader` counts rows
                                            to get LSNs
    manifest_format, batch_format           the published bytes
    manifest_object                         the keys of a queue, and its manifest
    side_object                             the object beside the manifest; creating and adopting
    acked                                   segments of acknowledged entries

Always holds:

- the manifest and the batches are in the published format, byte for byte; everything else that
  Headwater needs is in objects of its own beside them;
- LSNs are a function of the queue: every process that counts gets the same ones;
- nothing is appended again while it is unknown whether it was appended;
- nothing is deleted that Headwater's consumer did not acknowledge.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.buffer.queue.v1.appender import UNKNOWN_LSN, V1Appender
    from headwater.buffer.queue.v1.collector import V1Collector
    from headwater.buffer.queue.v1.consumer import V1Consumer
    from headwater.buffer.queue.v1.reader import V1Reader
    from headwater.buffer.queue.v1.side_object import (
        Adopted,
        ConsumedElsewhere,
        adopt_v1_queue,
        create_v1_queue,
    )

__all__ = [
    "Adopted",
    "ConsumedElsewhere",
    "UNKNOWN_LSN",
    "V1Appender",
    "V1Collector",
    "V1Consumer",
    "V1Reader",
    "adopt_v1_queue",
    "create_v1_queue",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "appender": "UNKNOWN_LSN V1Appender",
        "collector": "V1Collector",
        "consumer": "V1Consumer",
        "reader": "V1Reader",
        "side_object": "Adopted ConsumedElsewhere adopt_v1_queue create_v1_queue",
    },
)
