"""The servers as a fixture: every test that takes `server` runs once against each good one."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

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
