"""`headwater demo`: runs the main job on this machine, kills processes, and compares the results.

Two producers write orders into a stream; one is killed and started again. A PySpark job turns the
stream into an Iceberg table and a windowed aggregate; it is killed between the commit of a snapshot
and the commit of its offsets, and started again. Then the accepted orders are compared with those
of the stream and of the table.

    orders     an order, the process that sends orders under its own id, and the comparison
    query      the PySpark job
    run        starts and kills the processes, and shows the progress
"""

__all__: list[str] = []
