"""What Kafka's clients are told. What the log's promises rest on cannot be set otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from headwater.core import Secret
from headwater.core.errors import Refused

Settings: TypeAlias = Mapping[str, str | int | bool | Secret]

GROUP: Final = "headwater-metadata"
ONLY_CRITICAL: Final = 2
DELIVERY_TIMEOUT_MS: Final = 30_000
RECONNECT_MAX_MS: Final = 1_000
READ_AHEAD_KIB: Final = 16_384

# What was done comes back as a result or an error; a lost connection is made again silently.
_COMMON: Final[dict[str, str | int | bool]] = {
    "client.id": "headwater",
    "log_level": ONLY_CRITICAL,
    "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
    "socket.keepalive.enable": True,
}
_PRODUCER: Final[dict[str, str | int | bool]] = {
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    # Whoever publishes waits for the answer: there is nothing to wait together with.
    "linger.ms": 0,
}
_PRODUCER_FIXED: Final[dict[str, str | int | bool]] = {
    "acks": "all",
    "enable.idempotence": True,
}
_CONSUMER: Final[dict[str, str | int | bool]] = {
    # A consumer must name a group. It never joins it, and commits nothing.
    "group.id": GROUP,
    "queued.max.messages.kbytes": READ_AHEAD_KIB,
    "fetch.queue.backoff.ms": 10,
}
_CONSUMER_FIXED: Final[dict[str, str | int | bool]] = {
    "allow.auto.create.topics": False,
    # Any other setting goes on somewhere else and does not say so.
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}
_FIXED: Final = {**_PRODUCER_FIXED, **_CONSUMER_FIXED, "bootstrap.servers": ""}


def hide_values(message: str, asked: Settings) -> str:
    """What a client says about its settings, without what they are set to."""
    for value in asked.values():
        text = value.reveal() if isinstance(value, Secret) else str(value)
        message = message.replace(text, "…") if text else message
    return message


def _revealed(asked: Settings) -> dict[str, str | int | bool]:
    return {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in asked.items()
    }


def check_settings(asked: Settings) -> None:
    """Raise `Refused` for settings that would break a promise of the log."""
    fixed = sorted(asked.keys() & _FIXED.keys())
    if fixed:
        raise Refused(f"{', '.join(fixed)} cannot be set: the log's promises rest on it")


def admin_settings(servers: str, asked: Settings) -> dict[str, Any]:
    """For the client that asks about the topic."""
    return {**_COMMON, **_revealed(asked), "bootstrap.servers": servers}


def producer_settings(
    servers: str, asked: Settings, on_trouble: Callable[[Any], None]
) -> dict[str, Any]:
    """For the client that sends events."""
    return {
        **_COMMON,
        **_PRODUCER,
        **_revealed(asked),
        **_PRODUCER_FIXED,
        "bootstrap.servers": servers,
        "error_cb": on_trouble,
    }


def consumer_settings(servers: str, asked: Settings) -> dict[str, Any]:
    """For the client that reads them."""
    return {
        **_COMMON,
        **_CONSUMER,
        **_revealed(asked),
        **_CONSUMER_FIXED,
        "bootstrap.servers": servers,
    }
