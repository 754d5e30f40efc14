"""What becomes of each thing that Kafka's client may hand over."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from headwater.core.errors import (
    Corrupt,
    Denied,
    EntriesTrimmed,
    HeadwaterError,
    LimitExceeded,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.tier.eventlog import EventUnreadable, LogItem, PartitionFailed, PositionReached
from headwater.tier.eventlog.kafka_subscription import read_message
from headwater.tier.eventlog.kafka_topic import ConnectionErrors, publish_error


class Ends:
    """A consumer that says where a partition begins and ends, or that it cannot."""

    def __init__(self, ends: tuple[int, int] | KafkaException | None) -> None:
        self._ends = ends

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 1.0, cached: bool = False
    ) -> tuple[int, int] | None:
        if isinstance(self._ends, KafkaException):
            raise self._ends
        return self._ends


def message(code: int, *, partition: int = 2, offset: int = 9, fatal: bool = False) -> Message:
    error = KafkaError(code, "what the client says", fatal=fatal)
    return Message(topic="t", partition=partition, offset=offset, error=error)


def read(code: int, ends: tuple[int, int] | KafkaException | None = (0, 0)) -> LogItem | None:
    return read_message("t", message(code), Ends(ends))


def failure(item: LogItem | None) -> HeadwaterError:
    assert isinstance(item, PartitionFailed)
    assert item.partition == 2
    return item.error


def test_the_end_of_a_partition_is_a_position() -> None:
    assert read(KafkaError._PARTITION_EOF) == PositionReached(2, 9)


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_an_offset_that_is_not_there_is_told_with_why(code: int) -> None:
    trimmed = failure(read(code, (12, 20)))
    assert isinstance(trimmed, EntriesTrimmed)
    assert trimmed.first_offset == 12
    assert isinstance(failure(read(code, (0, 8))), RolledBack)
    assert isinstance(failure(read(code, (0, 9))), Unavailable), "a leader was behind"
    assert isinstance(failure(read(code, None)), Unavailable)
    unreachable = KafkaException(KafkaError(KafkaError._TRANSPORT))
    assert isinstance(failure(read(code, unreachable)), Unavailable)


def test_a_partition_that_was_cut_off_is_not_the_one_that_was_followed() -> None:
    assert isinstance(failure(read(KafkaError._LOG_TRUNCATION)), RolledBack)


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION])
def test_records_that_are_damaged_are_told_at_their_offset(code: int) -> None:
    item = read(code)
    assert isinstance(item, EventUnreadable)
    assert (item.partition, item.offset) == (2, 9)
    assert isinstance(item.error, Corrupt)


def test_whatever_else_happens_to_a_partition_fails_it() -> None:
    assert isinstance(failure(read(KafkaError.UNKNOWN_TOPIC_OR_PART)), Unavailable)
    assert isinstance(failure(read(KafkaError.TOPIC_AUTHORIZATION_FAILED)), Denied)


def test_a_lost_connection_is_nobodys_concern_and_a_dead_client_everybodys() -> None:
    down = message(KafkaError._ALL_BROKERS_DOWN, partition=-1)
    assert read_message("t", down, Ends(None)) is None
    dead = message(KafkaError._FATAL, partition=-1, fatal=True)
    with pytest.raises(KafkaException):
        read_message("t", dead, Ends(None))


@pytest.mark.parametrize(
    ("code", "at_first", "after_trouble"),
    [
        (KafkaError._MSG_TIMED_OUT, OutcomeUnknown, OutcomeUnknown),
        (KafkaError._PURGE_INFLIGHT, OutcomeUnknown, OutcomeUnknown),
        (KafkaError._PURGE_QUEUE, OutcomeUnknown, OutcomeUnknown),
        (KafkaError.NOT_ENOUGH_REPLICAS, OutcomeUnknown, OutcomeUnknown),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, OutcomeUnknown, OutcomeUnknown),
        (KafkaError.REQUEST_TIMED_OUT, OutcomeUnknown, OutcomeUnknown),
        (KafkaError.UNKNOWN, OutcomeUnknown, OutcomeUnknown),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Unavailable, OutcomeUnknown),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Denied, OutcomeUnknown),
        (KafkaError.INVALID_RECORD, Refused, OutcomeUnknown),
        (KafkaError.MSG_SIZE_TOO_LARGE, LimitExceeded, LimitExceeded),
    ],
)
def test_only_what_surely_has_not_landed_is_said_not_to_have(
    code: int, at_first: type[HeadwaterError], after_trouble: type[HeadwaterError]
) -> None:
    for is_first, kind in ((True, at_first), (False, after_trouble)):
        told = publish_error("an event", KafkaError(code), ConnectionErrors(), is_first=is_first)
        assert type(told) is kind


def test_a_time_out_says_what_was_last_heard() -> None:
    trouble = ConnectionErrors()
    trouble.note(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    told = publish_error("an event", KafkaError(KafkaError._MSG_TIMED_OUT), trouble, is_first=False)
    assert "last heard: wrong password" in str(told)
