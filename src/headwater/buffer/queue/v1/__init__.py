"""The published v1 queue: one manifest, as other implementations read and write it.

Enters: batches in the published format, ours and other producers'. Leaves: descriptors with
sequences, LSNs and rows, though the manifest has only the first of these.

    names, create               where everything stands, and how it is made
    manifest_object, side, view the manifest, the object beside it, both at one time
    counts, ledger, numbering   rows, then LSNs, then those of what a producer appended
    items                       the calls of a batch, as its entry has them
    segment, acked, cover       what was acknowledged and is retained
    appender                    a producer's door
    reader, taker, looker       reading; the owning consumer's door, everybody's
    collector                   the collector's door

Always holds:

- the manifest and the batches are the published format, byte for byte; whatever else Headwater
  needs stands in objects of its own beside them;
- LSNs are a function of the queue: whoever counts, and whenever, gets the same;
- nothing is appended twice on a guess;
- nothing is deleted that our consumer did not acknowledge.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.buffer.queue.v1.adopt import Adopted, adopt_v1_queue, create_v1_queue
    from headwater.buffer.queue.v1.appender import UNKNOWN_LSN, V1Appender
    from headwater.buffer.queue.v1.collector import V1Collector
    from headwater.buffer.queue.v1.consumer import V1Consumer
    from headwater.buffer.queue.v1.manifest_format import pack_calls
    from headwater.buffer.queue.v1.reader import V1Reader
    from headwater.buffer.queue.v1.side_object import ConsumedElsewhere

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
    "pack_calls",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "adopt": "Adopted adopt_v1_queue create_v1_queue",
        "appender": "UNKNOWN_LSN V1Appender",
        "collector": "V1Collector",
        "consumer": "V1Consumer",
        "manifest_format": "pack_calls",
        "reader": "V1Reader",
        "side_object": "ConsumedElsewhere",
    },
)
