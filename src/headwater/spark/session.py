"""A Spark session with what must be set, set; and nothing else.

    spark = session("orders")

Whatever the caller, the environment or spark-defaults.conf already says is kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.resources import files
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headwater.core.errors import Refused
from headwater.spark import java

LOCAL_SHUFFLE_PARTITIONS_MAX: Final = 8
"""Spark's own 200 are for a cluster: on one machine most of the time would go into empty tasks."""

_DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_SETTINGS: Final = "log4j2.properties"
_SHUFFLE: Final = "spark.sql.shuffle.partitions"
_SHIPPING: Final = ("yarn", "k8s://")
"""Masters whose workers have their own environment, where a path of this machine means nothing."""
_ALWAYS: Final = {"spark.python.use.daemon": "true", "spark.python.worker.reuse": "true"}
"""Python workers stay warm: starting one for each task costs seconds a query."""
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""On one machine nobody else needs to reach the driver, whatever its name resolves to."""


def session(
    app_name: str = "headwater",
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, object] | None = None,
    python: str | None = None,
    quiet: bool = True,
    quick_start: bool = False,
) -> SparkSession:
    """A `SparkSession`, made or found; like `getOrCreate`, with the stumbling blocks removed.

    `master`: as Spark has it; without it whatever is configured, else `local[*]`.
    `remote`: the address of a Spark Connect server, `sc://host:port`, instead of a master.
    `conf`: settings by name, which go before all others.
    `python`: the program that workers run, where it is not this one; also found on the driver.
    `quiet`: errors alone on standard error, and a progress bar only on a terminal.
    `quick_start`: Java optimises less, which a demo or a test likes and a long job does not.

    A session that runs already is returned with `conf` applied, as far as Spark can change it.
    """
    if master is not None and remote is not None:
        raise Refused("a session has a master or a remote server, not both: leave one out")
    asked = {name: _text(value) for name, value in (conf or {}).items()}
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    if remote is not None and remote.startswith("sc://"):
        return _built(SparkSession.builder.remote(remote), app_name, asked)
    running = SparkContext._active_spark_context
    if running is not None:
        return _existing(running, app_name, master, asked)
    where = master or asked.get("spark.master") or _default_master(os.environ)
    settings = _settings(where, asked, quiet=quiet, quick_start=quick_start)
    _name_python(os.environ, where, asked, python)
    builder = SparkSession.builder
    if remote is not None:
        builder = builder.remote(remote)
    elif where is not None:
        builder = builder.master(where)
    sources = _python_of_sources(os.environ, asked)
    with sources, _java_home(os.environ), _defaults_left_alone({*settings} - {*asked}):
        made = _built(builder, app_name, settings)
    if remote is None:
        _fit_shuffles(made)
    return made


def _existing(
    running: SparkContext, app_name: str, master: str | None, asked: dict[str, str]
) -> SparkSession:
    if master is not None and running.master != master:
        raise Refused(
            f"a session runs on {running.master} already, and a process has one at a time: "
            f"stop it before one on {master} is made"
        )
    return _built(SparkSession.builder, app_name, asked)


def _built(builder: SparkSession.Builder, app_name: str, conf: Mapping[str, str]) -> SparkSession:
    builder = builder.appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _settings(
    master: str | None, asked: Mapping[str, str], *, quiet: bool, quick_start: bool
) -> dict[str, str]:
    settings = dict(_ALWAYS)
    if _is_one_machine(master):
        settings |= _LOCAL
    if quiet and not sys.stderr.isatty():
        settings["spark.ui.showConsoleProgress"] = "false"
    settings |= asked
    # Options of Java add up, and the last one wins: what was asked for comes last.
    options = [*_java_options(asked, quiet, quick_start), asked.get(_JAVA_OPTIONS, "")]
    joined = " ".join(filter(None, options))
    return {**settings, _JAVA_OPTIONS: joined} if joined else settings


def _java_options(asked: Mapping[str, str], quiet: bool, quick_start: bool) -> Iterator[str]:
    if quiet and "log4j2.configurationFile" not in asked.get(_JAVA_OPTIONS, ""):
        yield f'"-Dlog4j2.configurationFile={files("headwater.spark").joinpath(_LOG_SETTINGS)}"'
    if quick_start:
        yield "-XX:TieredStopAtLevel=1"


def _default_master(environment: Mapping[str, str]) -> str | None:
    """`local[*]`, unless somebody may have configured another: then it is theirs to say."""
    configured = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")
    if any(name in environment for name in configured):
        return None
    return environment.get("MASTER") or "local[*]"


def _is_one_machine(master: str | None) -> bool:
    return master is not None and (master == "local" or master.startswith("local["))


def _name_python(
    environment: MutableMapping[str, str],
    master: str | None,
    asked: Mapping[str, str],
    python: str | None,
) -> None:
    """Workers run this very Python, and not whichever `python3` comes first on PATH."""
    if python is not None:
        environment["PYSPARK_PYTHON"] = python
    elif "spark.pyspark.python" not in asked and not (master or "").startswith(_SHIPPING):
        environment.setdefault("PYSPARK_PYTHON", sys.executable)


@contextlib.contextmanager
def _python_of_sources(
    environment: MutableMapping[str, str], asked: Mapping[str, str]
) -> Iterator[None]:
    """While Java starts, the driver's Python is that of the workers, by the same path.

    Spark plans a source with the driver's Python and sends that very path to the executors, so one
    that only the driver has (PYSPARK_DRIVER_PYTHON) would fail there, whatever was shipped.
    """
    named = asked.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON")
    if named is not None and shutil.which(named) is None:
        raise Refused(
            f"{named} is not on this machine, and Spark runs a source by one path on the driver "
            "and on executors. Unpack what is shipped where the driver starts (mkdir environment "
            "&& tar -xzf environment.tar.gz -C environment), or install it everywhere alike"
        )
    with _changed(environment, _DRIVER_PYTHON, named):
        yield


@contextlib.contextmanager
def _java_home(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Name a Java that works while Spark starts one; afterwards the environment is as it was."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in environment:
        yield  # Java runs already
        return
    home = java.quiet_home(environment)
    if home is None:
        raise Refused(f"Spark needs Java {java.OLDEST} or newer, and none was found. {java.ADVICE}")
    with _changed(environment, "JAVA_HOME", str(home)):
        yield


@contextlib.contextmanager
def _changed(environment: MutableMapping[str, str], name: str, value: str | None) -> Iterator[None]:
    before = environment.get(name)
    _put(environment, name, value)
    try:
        yield
    finally:
        _put(environment, name, before)


def _put(environment: MutableMapping[str, str], name: str, value: str | None) -> None:
    if value is None:
        environment.pop(name, None)
    else:
        environment[name] = value


@contextlib.contextmanager
def _defaults_left_alone(names: set[str]) -> Iterator[None]:
    """A Connect server that was just started with a setting warns that it cannot be changed."""
    pattern = "|".join(re.escape(name) for name in sorted(names))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f"Failed to set ({pattern}) to", UserWarning)
        yield


def _fit_shuffles(spark: SparkSession) -> None:
    """As many shuffle partitions as there are cores, on one machine, if nobody chose a number."""
    context = spark.sparkContext
    if _is_one_machine(context.master) and not context.getConf().contains(_SHUFFLE):
        cores = min(context.defaultParallelism, LOCAL_SHUFFLE_PARTITIONS_MAX)
        spark.conf.set(_SHUFFLE, str(cores))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
