"""Where the log of the tier's events is: in the store, or in a topic of Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headwater.core.errors import NotFound, Refused

if TYPE_CHECKING:
    from headwater.core import Secret
    from headwater.store import Store
    from headwater.tier.eventlog import MetadataEventLog, StoredEventLog

STORED_PREFIX = "metadata"
PREFIX = typer.Option(
    STORED_PREFIX, "--prefix", help="Where in the store the log of the tier's events stands."
)
SERVERS = typer.Option(
    None,
    "--bootstrap-servers",
    metavar="HOST:PORT,…",
    help="The tier's events are in a topic of these Kafka brokers; needs confluent-kafka.",
)
TOPIC = typer.Option("__remote_log_metadata", "--topic", help="Which topic of theirs.")
METADATA_PARTITIONS = typer.Option(
    50, "--metadata-partitions", min=1, help="By how many partitions its writers choose one."
)
KAFKA_CONFIG = typer.Option(
    None,
    "--kafka-config",
    metavar="FILE",
    help="Settings of Kafka's client, NAME=VALUE in each line: passwords belong into a file.",
)


@dataclass(frozen=True)
class EventLogPlace:
    """A log as the options name it."""

    prefix: str = STORED_PREFIX
    servers: str | None = None
    topic: str = ""
    metadata_partitions: int = 0
    config: Path | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody named another one: there may be none then."""
        return self.servers is None and self.prefix == STORED_PREFIX

    @asynccontextmanager
    async def opened(self, store: Store | None) -> AsyncIterator[MetadataEventLog]:
        """The log, which is not made if there is none. A topic of Kafka needs no store."""
        if self.servers is not None:
            log: MetadataEventLog = await self._open_topic(self.servers)
        elif store is not None:
            log = await self._open_stored(store)
        else:
            raise Refused("which log? Name the URL of its store, or --bootstrap-servers")
        try:
            yield log
        finally:
            await log.close()

    @asynccontextmanager
    async def opened_in(self, store: Store) -> AsyncIterator[StoredEventLog]:
        """The log in the store; `NotFound` if there is none."""
        log = await self._open_stored(store)
        try:
            yield log
        finally:
            await log.close()

    async def _open_topic(self, servers: str) -> MetadataEventLog:
        from headwater.tier.eventlog import KafkaEventLog

        return await KafkaEventLog.open(
            servers,
            topic=self.topic,
            partition_count=self.metadata_partitions,
            settings={} if self.config is None else _settings(self.config),
        )

    async def _open_stored(self, store: Store) -> StoredEventLog:
        from headwater.store import Register
        from headwater.tier.eventlog import StoredEventLog
        from headwater.tier.eventlog.stored_floor import log_key
        from headwater.tier.eventlog.stored_log import LogRecord

        try:
            record = (await Register(store, log_key(self.prefix), LogRecord).read()).value
        except NotFound:
            record = None
        # One that was left half made has no events yet, and to open it would be to finish it.
        if record is None or not record.made:
            raise NotFound(
                f"there is no log of the tier's events under {self.prefix!r}: nothing was ever "
                "copied to the tier here, or its events are elsewhere (--prefix, "
                "--bootstrap-servers)"
            )
        return await StoredEventLog.open(
            store, prefix=self.prefix, partition_count=record.partition_count
        )


def _settings(path: Path) -> dict[str, str | int | bool | Secret]:
    """What the file says, as Kafka's own tools read theirs."""
    from headwater.core import Secret

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    settings: dict[str, str | int | bool | Secret] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            # Not the line itself: it may be a password.
            raise Refused(f"{path}, line {number}: a setting is NAME=VALUE")
        settings[name.strip()] = Secret(value.strip())
    return settings
