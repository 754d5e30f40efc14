"""Reading streams: where a query stands, what comes next, and rows as Arrow on the executors.

Enters: options, and offsets from Spark. Leaves: offsets, input partitions, Arrow batches.

    batch_reader, stream_reader   what Spark calls; refused_reader, if there can be none
    micro_batches                 a streaming query: where it begins, what is next, what is done
    feed, buffer_feed             one partition, whatever holds it: the seam for other sources
    offset, known, limits, plan   positions, batches not read yet, how many of them, for whom
    shape, rows, slice_reading    columns, and how executors make them

Always holds:

- an offset has one spelling, and says everything that it takes to read on from there;
- where a group begins is resolved once and kept, whoever asks and how often;
- planning reads no batch; what executors get is small and names no credential.
"""

from headwater.spark.source.readers import BatchReader, RefusedReader, StreamReader

__all__ = ["BatchReader", "RefusedReader", "StreamReader"]
