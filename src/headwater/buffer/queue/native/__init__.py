"""The native queue: numbered chunks of entries, the last of which grows.

Enters: batches and their counts, from appenders. Leaves: descriptors with sequences and LSNs.

    queue.json      floors: what is no longer retained
    end.json        how far the queue has come at least
    chunks/<n>      entries; appenders add to the last chunk while it is open
    batches/<ULID>  the batches, except small ones, which are stored in their entries
    producers/…     marks: each producer's last accepted batch
    consumer.json   the owner, its epoch, what is acknowledged
    gc.json         how far the collector has come

In files:

    chunk       the bytes of one chunk
    chunk_log   all chunks, and the registers of the queue
    tail        writing to the end of the queue
    turns       which writer's turn it is
    appender    appending for one producer id
    producers   the record of a producer id; forgetting silent producers
    reader      from a sequence, or a time, to descriptors
    consumer    the owner of the partition
    collector   the passes of the collector, and what is past the retention
    orphans     uploads that were never appended

Always holds:

- a chunk is created on a closed one, so sequences and LSNs are dense and never assigned twice;
- floors rise before anything is deleted, and producers' marks are written before floors rise;
- the bytes that an append, a poll or a dequeue moves do not depend on how much is pending.
"""

__all__: list[str] = []
