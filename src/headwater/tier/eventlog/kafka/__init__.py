"""A log of metadata events in a topic of Apache Kafka, also in the one that brokers fill.

Enters: the addresses of brokers. Leaves: a `MetadataEventLog`. Needs the extra `kafka`.

    log           the log: opens the topic, hands out the rest
    topic         finds or creates the topic, and asks where its partitions end
    sender        sends events, and tells what surely has not landed from what may have
    subscription  what is followed, and its items, on the event loop
    reader        the consumer behind a subscription, on a thread
    records       what stands in a record, and what it is to whoever follows
    faults        what Kafka's errors mean here
    settings      what the clients are told

Always holds: only the broker says at which offset an event is; an offset that the topic does not
have is told and never replaced by another one; a partition of which nothing was heard is unknown,
not empty.
"""

from headwater.tier.eventlog.kafka.log import KafkaEventLog

__all__ = ["KafkaEventLog"]
