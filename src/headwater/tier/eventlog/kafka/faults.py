"""What Kafka's errors mean here: which say that an event has not landed, which leave it open."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from headwater.core.errors import (
    Denied,
    HeadwaterError,
    LimitExceeded,
    OutcomeUnknown,
    Refused,
    Unavailable,
)

_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_TOO_LARGE: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_GONE: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class Trouble:
    """What went wrong with connections: what a time-out by itself does not tell."""

    def __init__(self) -> None:
        self.count = 0
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Called by the client, on whatever thread serves it."""
        self._last = error
        self.count += 1

    def __str__(self) -> str:
        return "" if self._last is None else f" (last heard: {self._last.str()})"


def error_of(raised: KafkaException) -> KafkaError:
    """What a client's exception carries."""
    error = raised.args[0]
    assert isinstance(error, KafkaError)
    return error


def fault(what: str, error: KafkaError) -> HeadwaterError:
    """Why something did not work that has changed nothing."""
    for kinds, kind in ((_DENIED, Denied), (_TOO_LARGE, LimitExceeded), (_REFUSED, Refused)):
        if error.code() in kinds:
            return kind(f"{what}: {error.str()}")
    return Unavailable(f"{what}: {error.str()}")


def publish_fault(
    what: str, error: KafkaError, trouble: Trouble, *, is_first: bool
) -> HeadwaterError:
    """Why an event that was handed to the client was not acknowledged.

    The client repeats what it gets no answer to, and the last answer is that to the last attempt:
    what a broker refuses then may have landed before. `is_first` says that nothing went wrong with
    a connection since the event was handed over. What is too large is so in every attempt.
    """
    code = error.code()
    if code in _TOO_LARGE or (is_first and (code in _DENIED or code in _GONE or code in _REFUSED)):
        return fault(what, error)
    return OutcomeUnknown(
        f"{what}: {error.str()}{trouble}; it may have landed all the same: follow the partition to "
        "its end to know"
    )
