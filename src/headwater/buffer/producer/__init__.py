"""Producers: records from programs into the queues of a stream.

Enters: values, Arrow tables or dicts, call by call. Leaves: batches, uploaded and appended in
order, and for every call a handle that tells the place of its records.

    producer, blocking          the two fronts; about, unclosed: what both tell, and their end
    engine                      what stands behind them, from a call to its goodbye
    known_stream                what it knows of the stream's columns, and how it learns more
    given, parcel, dict_rows    a call, checked and made plain; rows, pieces: as lists, as columns
    accumulator, drafts         calls become batches; gathering, stage, draft: while they do
    line                        callers who wait for room
    lane                        a partition's way into its queue: encode, upload, append
    handle                      what a call gives back
    config, metrics             its settings, and what it did

Always holds:

- a call is kept whole or not at all, and refused before anything of it is written;
- what a call carries is recorded of the stream before the call is kept;
- records of one partition are accepted in the order of their calls, each exactly once;
- an error reaches exactly the handles it concerns, and nobody's records vanish without one;
- whatever is held and not accepted is counted, and bounded.
"""

from headwater.buffer.producer.blocking import BlockingHandle, BlockingProducer
from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.handle import Acceptance, Accepted, Handle, PartlyAccepted
from headwater.buffer.producer.line import BufferFull
from headwater.buffer.producer.metrics import ProducerMetrics
from headwater.buffer.producer.producer import Producer

__all__ = [
    "Acceptance",
    "Accepted",
    "BlockingHandle",
    "BlockingProducer",
    "BufferFull",
    "Handle",
    "PartlyAccepted",
    "Producer",
    "ProducerMetrics",
    "Settings",
]
