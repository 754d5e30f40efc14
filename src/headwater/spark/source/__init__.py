"""The source: plans reads on the driver, and makes rows on executors.

Enters: options, and offsets from Spark. Leaves: offsets, input partitions, Arrow batches.

    streams         which streams and partitions are read, and their columns
    bounds          where a read begins and ends by its options; errors for records that are gone
    offset          a query's positions, as Spark stores them in its checkpoint
    feed            one partition: its bounds, its batches
    slices          rows of batches; the limits of a micro-batch; how slices become tasks
    micro_batches   a streaming query on the driver: start, next micro-batch, plan, commit
    checkpoint      a run of a query in its group: epochs, positions, the newest checkpoint
    executor        fetches the batches of a task and makes rows of them

Always holds:

- an offset has one JSON text and contains everything that a query needs to continue from it;
- a position is an LSN; the sequences of batches stay in `feed`;
- where a group begins is resolved once and stored;
- planning reads no batch; what is sent to executors is small and contains no credential.
"""

__all__: list[str] = []
