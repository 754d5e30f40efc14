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
_NOT_LANDED: Final = frozenset(
    {
        KafkaError._PURGE_QUEUE,
        KafkaError._QUEUE_FULL,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Before anything is appended, and every retry with the same answer."""


class Trouble:
    """The last thing that went wrong with a connection: what a time-out by itself does not tell."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Called by the client, on whatever thread serves it."""
        self._last = error

    def __str__(self) -> str:
        return "" if self._last is None else f" (last heard: {self._last.str()})"


def error_of(raised: KafkaException) -> KafkaError:
    """What a client's exception carries."""
    error = raised.args[0]
    assert isinstance(error, KafkaError)
    return error


def fault(what: str, error: KafkaError) -> HeadwaterError:
    """Why something that changes nothing did not work."""
    return _refusal(what, error) or Unavailable(f"{what}: {error.str()}")


def publish_fault(what: str, error: KafkaError, trouble: Trouble) -> HeadwaterError:
    """Why an event was not acknowledged. Whatever does not say that it has not landed may have."""
    refusal = _refusal(what, error)
    if refusal is not None:
        return refusal
    if error.code() in _NOT_LANDED:
        return Unavailable(f"{what}: {error.str()}")
    return OutcomeUnknown(
        f"{what}: {error.str()}{trouble}; it may have landed all the same: follow the partition to "
        "its end to know"
    )


def _refusal(what: str, error: KafkaError) -> HeadwaterError | None:
    for kinds, kind in ((_DENIED, Denied), (_TOO_LARGE, LimitExceeded), (_REFUSED, Refused)):
        if error.code() in kinds:
            return kind(f"{what}: {error.str()}")
    return None
