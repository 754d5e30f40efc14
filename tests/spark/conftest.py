"""One Spark for all tests of the package: starting it takes longer than any of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headwater.spark import session
from tests.table.conftest import warehouse

__all__ = ["spark", "warehouse"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two local cores, whose workers run this very Python."""
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
        made = session(
            "headwater-tests",
            master="local[2]",
            quick_start=True,
            conf={
                "spark.sql.session.timeZone": "UTC",
                "spark.local.dir": scratch / "local",
                "spark.sql.warehouse.dir": scratch / "warehouse",
                "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
            },
        )
        yield made
        made.stop()
