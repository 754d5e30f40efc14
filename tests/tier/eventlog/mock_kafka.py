"""librdkafka's mock cluster: brokers within this process that speak Kafka's protocol.

They answer what clients ask for producing, fetching and finding leaders, keep a few megabytes of a
partition, and can be told to fail. They have no administration of topics, no transactions and no
ids of topics.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka.cimpl

PARTITIONS: Final = 4
BROKERS: Final = 3

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
INIT_PRODUCER_ID: Final = 22

_PRODUCER: Final = 0
_ERROR_BYTES: Final = 512


def _library() -> Any:
    """The functions of the library that the client is linked with."""
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    pointers = (
        "rd_kafka_conf_new",
        "rd_kafka_new",
        "rd_kafka_mock_cluster_new",
    )
    for name in pointers:
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafka:
    """A cluster of brokers that can be told to fail."""

    def __init__(self, library: Any, cluster: ctypes.c_void_p) -> None:
        self._library = library
        self._cluster = cluster
        self._topics = itertools.count()
        self.servers: str = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

    def new_topic(self) -> str:
        """A topic that nobody has used."""
        name = f"metadata-{next(self._topics)}"
        self._do("topic_create", name.encode(), PARTITIONS, BROKERS)
        return name

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Let a broker (1 to 3) lead a partition; -1 for none."""
        self._do("partition_set_leader", topic.encode(), partition, broker)

    def fail_next(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind, whoever they come to, with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), array
        )

    def fail_no_more(self, request: int) -> None:
        """Answer requests of a kind as they are meant."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(request))

    def delay(self, milliseconds: int) -> None:
        """Let the answers of all brokers take so long."""
        for broker in range(1, BROKERS + 1):
            self._do("broker_set_rtt", broker, milliseconds)

    @contextmanager
    def down(self, *brokers: int) -> Iterator[None]:
        """Without these brokers: connections to them end, and are refused."""
        for broker in brokers:
            self._do("broker_set_down", broker)
        try:
            yield
        finally:
            for broker in brokers:
                self._do("broker_set_up", broker)

    def _do(self, what: str, *arguments: int | bytes) -> None:
        function = getattr(self._library, f"rd_kafka_mock_{what}")
        error = function(self._cluster, *arguments)
        if error:
            raise AssertionError(f"the mock cluster cannot {what}{arguments}: error {error}")


@contextmanager
def mock_kafka() -> Iterator[MockKafka]:
    """A cluster until the end of the block."""
    library = _library()
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    message = ctypes.create_string_buffer(_ERROR_BYTES)
    library.rd_kafka_conf_set(settings, b"log_level", b"0", message, _ERROR_BYTES)
    handle = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, settings, message, _ERROR_BYTES))
    assert handle.value, message.value
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(handle, BROKERS))
    assert cluster.value
    try:
        yield MockKafka(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(handle)
