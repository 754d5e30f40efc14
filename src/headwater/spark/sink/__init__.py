"""The sink: writes the rows of a DataFrame to a stream, exactly once.

Enters: a batch DataFrame, or the micro-batches of a streaming query. Leaves: all of its records in
the stream, or none.

    columns   which columns a DataFrame may have, the records they become, and their partitions
    writers   what Spark calls; tasks upload, and the driver commits

Always holds: all writes are transactions of `headwater.buffer.transaction`; rows are never looped
over; new columns of the stream are recorded before any task runs, when a writer is created.
"""

from headwater.spark.sink.writers import BatchWriter, StreamWriter

__all__ = ["BatchWriter", "StreamWriter"]
