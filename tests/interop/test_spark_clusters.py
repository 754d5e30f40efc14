"""The same job on every kind of Spark: reads, a stream to a stream, a table, a repeated write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.interop.cache import REPO, Unavailable
from tests.interop.servers import Server
from tests.interop.spark_archive import environment_archive, unpack
from tests.interop.spark_environment import (
    SPARK_4_1,
    SPARK_4_2,
    iceberg_runtime,
    python_with_spark,
)
from tests.interop.spark_job import (
    check_hidden,
    check_limits,
    check_logged,
    check_rows,
    event_log,
    remove_work,
    run_job,
)
from tests.interop.spark_program import BATCHES, PARTITIONS, PARTS, TOTAL
from tests.interop.spark_servers import connect_server, standalone

pytestmark = pytest.mark.interop

PROFILE = "headwater"


def test_a_cluster_of_two_local_processes(tmp_path: Path) -> None:
    told = run_job(tmp_path, {"master": "local-cluster[2,1,1024]"})
    remove_work(told)
    check_rows(told)
    check_limits(told)
    assert len({worker["folder"] for worker in told["workers"]}) == 2


def test_a_standalone_cluster_has_what_it_is_sent_and_credentials_of_its_own(
    tmp_path: Path, ministack: Server
) -> None:
    """The driver and the workers find different keys under one name, and neither is sent."""
    try:
        archive = environment_archive()
    except Unavailable as reason:
        pytest.skip(f"an environment to ship: {reason}")
    address = {name: ministack.env[name] for name in ministack.env if "KEY" not in name}
    of_driver = _profile(tmp_path / "keys-of-driver", "driver")
    of_workers = _profile(tmp_path / "keys-of-workers", "workers")
    job, events = tmp_path / "job", tmp_path / "cluster" / "events"
    events.mkdir(parents=True)
    unpack(archive, job / "environment")
    with standalone(tmp_path / "cluster", workers=2, env={**address, **of_workers}) as master:
        conf = {
            **event_log(events),
            "spark.archives": f"{archive}#environment",
            "spark.executor.memory": "512m",
        }
        told = run_job(
            job,
            {"master": master, "python": "./environment/bin/python", "conf": conf},
            url=f"{ministack.url}standalone?profile={PROFILE}",
            env={**address, **of_driver},
        )
    check_rows(told)
    check_limits(told)
    assert len({worker["folder"] for worker in told["workers"]}) == 2
    for worker in told["workers"]:
        assert worker["package"].startswith(f"{worker['folder']}/environment/")
    check_logged(events)
    keys = [f"{kind}-{who}" for kind in ("KEYID", "SECRET") for who in ("driver", "workers")]
    from_executor = told["refusals"][1]
    assert "/environment/lib/" in from_executor
    assert str(REPO / "src" / "headwater" / "spark" / "source") not in from_executor
    check_hidden(keys, told, job)
    check_hidden(keys, told, tmp_path / "cluster")


def _profile(folder: Path, who: str) -> dict[str, str]:
    """An environment in which the profile has keys."""
    folder.mkdir()
    keys = f"aws_access_key_id = KEYID-{who}\naws_secret_access_key = SECRET-{who}\n"
    (folder / "credentials").write_text(f"[{PROFILE}]\n{keys}")
    return {"AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}


def test_spark_connect(tmp_path: Path) -> None:
    with connect_server(tmp_path, sys.executable) as address:
        told = run_job(tmp_path / "job", {"remote": address})
    check_rows(told)
    check_limits(told)


def test_spark_4_2(tmp_path: Path) -> None:
    told = run_job(tmp_path, {"master": "local[2]"}, python=_python(SPARK_4_2))
    assert told["spark"] == SPARK_4_2
    check_rows(told)
    check_limits(told)


def test_spark_4_1_has_no_limits_and_loses_nothing(tmp_path: Path) -> None:
    session, parts = {"master": "local[2]"}, (*PARTS, "more")
    told = run_job(tmp_path, session, *parts, python=_python(SPARK_4_1))
    assert told["spark"] == SPARK_4_1
    # Nothing follows the only micro-batch of an AvailableNow, and only the next acknowledges it.
    check_rows(told, unacknowledged=PARTITIONS * BATCHES)
    assert not told["limits"]
    assert told["stream"]["rows"] == [TOTAL]
    assert told["more"]["rows"] == [TOTAL, 1]
    assert told["more"]["unacknowledged"] == 1
    assert told["more"]["written"] == list(range(TOTAL + 1))


def test_the_runtime_of_iceberg_reads_a_table_that_headwater_wrote(tmp_path: Path) -> None:
    python = _python(SPARK_4_1)
    try:
        jar = iceberg_runtime()
    except Unavailable as reason:
        pytest.skip(f"Iceberg's runtime: {reason}")
    session = {"master": "local[2]", "conf": {"spark.jars": str(jar)}}
    told = run_job(tmp_path, session, "table", "iceberg", python=python)
    assert told["iceberg"] == told["table"]["ids"] == list(range(TOTAL))


def _python(version: str) -> Path:
    try:
        return python_with_spark(version)
    except Unavailable as reason:
        pytest.skip(f"Spark {version}: {reason}")
