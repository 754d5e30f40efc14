"""The servers as a fixture: every test that takes `server` runs once against each good one.

`rust` is the published Rust buffer on that server, which has to speak the S3 protocol. `kafka` is
one broker for all tests that take it.
"""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.kafka_admin import answers
from tests.interop.kafka_broker import JavaTools, KafkaBroker
from tests.interop.rust_tool import RustBuffer, build
from tests.interop.servers import GOOD, Recipe, Server, Unavailable


@pytest.fixture(scope="session", params=GOOD, ids=lambda recipe: recipe.name)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    recipe: Recipe = request.param
    with ExitStack() as running:
        try:
            started = running.enter_context(recipe.start(tmp_path_factory.mktemp(recipe.name)))
        except Unavailable as reason:
            pytest.skip(f"{recipe.name}: {reason}")
        yield started


@pytest.fixture(scope="session")
def rust_program() -> Path:
    try:
        return build()
    except Unavailable as reason:
        pytest.skip(f"the Rust buffer: {reason}")


@pytest.fixture
def rust(rust_program: Path, server: Server) -> RustBuffer:
    """In the place of a stream's only partition; the stream's name is no other test's."""
    return RustBuffer(rust_program, server, f"s{secrets.token_hex(6)}")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker with tiered storage on. Whoever kills it starts it again."""
    try:
        tools = JavaTools.find()
    except Unavailable as reason:
        pytest.skip(f"Kafka: {reason}")
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"), tools, tiered=True)
    try:
        broker.start(lambda: answers(broker))
        yield broker
    finally:
        broker.kill()
