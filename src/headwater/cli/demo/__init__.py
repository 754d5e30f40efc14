"""`headwater demo`: the main job end to end on this machine, with kills, and the proof by counts.

Two producers write orders into a stream; one is killed and started again. A PySpark job turns the
stream into an Iceberg table and a windowed aggregate; it is killed between the commit of a snapshot
and the commit of its offsets, and started again. Then what producers were told is compared with
what the stream holds and with what the table holds.

    orders     an order, the same whoever makes it, and its fingerprint
    producer   a process that sends orders under its own id
    query      the PySpark job
    process    a process of the demo, in its first life or a later one
    verdict    accepted, read and stored, compared
    view       how it looks
    run        all of it
"""

from headwater.cli.demo.run import run_demo

__all__ = ["run_demo"]
