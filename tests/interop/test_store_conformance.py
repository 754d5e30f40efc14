"""The conformance suite on real servers: the good ones are safe, and the wrong ones are found.

The wrong ones are the suite's own test. A suite that passes everywhere shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headwater.store import open_store
from headwater.store.conformance import StoreReport, check_store
from tests.interop.servers import FLAWED, Server, Unavailable

pytestmark = pytest.mark.interop

# moto compares and writes without a lock, and two requests rarely meet there. A run in which they
# do not says nothing about moto, so it is repeated, and in the end reported as what it is.
RARE_ROUNDS = 20
RARE_INCREMENTS = 40


@contextmanager
def reaching(server: Server) -> Iterator[None]:
    """The server's environment, and nobody else's credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        for name, value in server.env.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def flawed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    recipe = next(recipe for recipe in FLAWED if recipe.name == request.param)
    with ExitStack() as running:
        try:
            server = running.enter_context(recipe.start(tmp_path))
        except Unavailable as reason:
            pytest.skip(f"{recipe.name}: {reason}")
        running.enter_context(reaching(server))
        yield server


def test_a_good_server_is_safe(server: Server) -> None:
    async def run() -> tuple[StoreReport, list[str]]:
        async with open_store(f"{server.url}conformance") as store:
            report = await check_store(store)
            return report, [meta.key async for meta in store.list()]

    with reaching(server):
        report, left = asyncio.run(run())
    assert report.safe, report.verdict
    assert report.named("skipped") == []
    assert left == report.left_behind == []


@pytest.mark.parametrize("flawed", ["rclone"], indirect=True)
def test_a_server_that_ignores_conditions_is_found(flawed: Server) -> None:
    async def run() -> StoreReport:
        async with open_store(f"{flawed.url}conformance") as store:
            return await check_store(store)

    report = asyncio.run(run())
    assert not report.safe
    assert {"replace-if-unchanged", "race-replace", "race-create"} <= set(report.named("fail"))
    assert "accepted updates were lost without an error" in report.verdict


@pytest.mark.parametrize("flawed", ["moto"], indirect=True)
def test_a_server_that_loses_an_update_now_and_then_is_found(flawed: Server) -> None:
    async def run() -> StoreReport:
        async with open_store(f"{flawed.url}conformance") as store:
            return await check_store(
                store, only=["race-replace"], increments=RARE_INCREMENTS, repeat=RARE_ROUNDS
            )

    report = asyncio.run(run())
    if report.safe:
        pytest.skip(f"not seen in {RARE_ROUNDS} runs: moto lost no update this time")
    assert report.named("fail") == ["race-replace"], report.verdict
    assert "accepted updates were lost without an error" in report.verdict
