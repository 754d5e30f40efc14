"""Writing: the rows of a DataFrame into a stream, exactly once.

Enters: a batch DataFrame, or the micro-batches of a streaming query. Leaves: all of its records in
the stream, or none.

    columns     which columns a DataFrame may have, and what becomes of them
    routing     which partition each record goes to
    task        an executor's side: Arrow batches in, uploads out, and a message for the driver
    kept        what stays open from one commit of a query to the next
    writers     what Spark calls, for a batch and for a stream

Always holds: a transaction of `headwater.buffer.transaction` is all that is written; rows are never
looped over; what a stream is to carry is recorded before any task runs, when a writer is made.
"""

from headwater.spark.sink.writers import BatchWriter, StreamWriter

__all__ = ["BatchWriter", "StreamWriter"]
