"""Queues: the order of a partition's batches, in the native format or the published one.

`contract` has the four interfaces; `native` and `v1` implement them.

Always holds: a sequence and its LSNs, once assigned, never belong to another batch.
"""

__all__: list[str] = []
