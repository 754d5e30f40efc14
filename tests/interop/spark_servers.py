"""Spark's own servers, from the pip package: a master with its workers, and a Connect server.

They are started with an environment in which nothing of this checkout can be found by accident: a
worker's Python comes with what the job ships to it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyspark

from headwater.spark import java
from tests.interop.cache import Unavailable
from tests.interop.process import HOST, Process, free_port

SPARK_HOME = Path(pyspark.__file__).parent
WORKER_MEMORY = "1g"
READY_DEADLINE_S = 240.0
"""Java is slow to start on a machine that is busy with something else."""
_FROM_OUTSIDE = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")


@contextmanager
def standalone(folder: Path, workers: int, env: Mapping[str, str]) -> Iterator[str]:
    """The address of a master with so many workers of one core; `env` is what workers have."""
    port = free_port()
    address = f"spark://{HOST}:{port}"
    with ExitStack() as running:
        command = ["org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port)]
        command += ["--webui-port", str(free_port())]
        master = _started(running, folder / "master", command, {})
        master.wait_until(lambda: _listens(port), READY_DEADLINE_S)
        for number in range(workers):
            place = folder / f"worker-{number}"
            command = ["org.apache.spark.deploy.worker.Worker", "--host", HOST, "--cores", "1"]
            command += ["--memory", WORKER_MEMORY, "--work-dir", str(place / "work")]
            command += ["--webui-port", str(free_port()), address]
            worker = _started(running, place, command, env)
            registered = partial(_says, place / "log", "Successfully registered")
            worker.wait_until(registered, READY_DEADLINE_S)
        yield address


@contextmanager
def connect_server(folder: Path, python: str) -> Iterator[str]:
    """The address of a Connect server, whose driver and workers run `python`."""
    port = free_port()
    settings = {
        "spark.master": "local[2]",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
    }
    server_class = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = ["org.apache.spark.deploy.SparkSubmit", "--class", server_class]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    named = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    with ExitStack() as running:
        server = _started(running, folder / "connect", [*command, "spark-internal"], named)
        server.wait_until(lambda: _listens(port), READY_DEADLINE_S)
        yield f"sc://{HOST}:{port}"


def _started(
    running: ExitStack, folder: Path, command: list[str], env: Mapping[str, str]
) -> Process:
    folder.mkdir(parents=True)
    home = java.quiet_home(os.environ)
    if home is None:
        raise Unavailable(f"Java {java.OLDEST} or newer was not found")
    kept = {name: "" for name in _FROM_OUTSIDE if name in os.environ}
    known = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "JAVA_HOME": str(home)}
    program = [str(SPARK_HOME / "bin" / "spark-class"), *command]
    process = Process(program, {**kept, **known, **env}, folder, folder / "log")
    running.callback(process.kill)
    return process


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _says(log: Path, words: str) -> bool:
    return words in log.read_text(errors="replace")
