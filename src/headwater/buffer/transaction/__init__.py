"""Transactions: batches of many writers appended together, exactly once.

Enters: records, from the tasks of a job. Leaves: all of them in the stream, or none.

    upload      for a task: records in, uploads out
    commit      for the driver: commit or abort
    record      the commit record of an application, and appending what it names
    holds       what keeps the collector from uploads that are not appended yet

Always holds:

- a version of an application is committed once, by one change of one register, with all batches;
- what is committed is appended exactly once and completely, by any process that finds it missing;
- within a partition, a transaction's records are ordered by task, then as the task wrote them;
- while a transaction is renewed, none of its uploads is collected, whatever the clocks say.
"""

__all__: list[str] = []
