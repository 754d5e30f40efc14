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

__all__: list[str] = []
