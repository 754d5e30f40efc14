"""Producers: records from programs into the queues of a stream.

Data flows in one direction, through parts that have Kafka's names:

    Producer, BlockingProducer      produce(records) → handle
      │  call                       the arguments of a call, checked, as lists or Arrow columns
      │  RecordSerializer           fits a call to the stream's columns, and records new ones first
      ▼
    RecordAccumulator               calls wait their turn and for room, and are appended to
      │  OpenBatches                the open batch of their partition; a batch is sealed when it is
      ▼                             full, or after `linger_ms`
    Sender, one PartitionSender     encodes and uploads several batches at a time, appends them in
      │   for each partition        the order of sealing, repeats what has no answer
      ▼
    ProducerBatch ◄── Handle        the result: a handle is a range of rows of its batch

`record_columns` joins, cuts and splits records; `config` has the settings and the metrics. No part
calls one before it: the accumulator sets `is_stirred`, and the producer wakes the sender, which
drains it. All state is under the accumulator's lock or on the event loop of the sender.

Always holds:

- a call is appended whole or not at all, and refused before anything of it is written;
- the columns of a call are recorded in the stream's register before the call is appended;
- records of one partition are accepted in the order of their calls, each exactly once;
- an error reaches exactly the handles it concerns, and no record is lost without one;
- all records that are not accepted yet are counted, and bounded.
"""

from headwater.buffer.producer.accumulator import BufferFull
from headwater.buffer.producer.blocking import BlockingProducer
from headwater.buffer.producer.handle import (
    Acceptance,
    Accepted,
    BlockingHandle,
    Handle,
    PartlyAccepted,
)
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
]
