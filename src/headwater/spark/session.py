"""A Spark session with the settings that Headwater needs, and no others.

    spark = session("orders")

Settings of the caller, the environment or spark-defaults.conf are kept.
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
"""Spark's default of 200 is for a cluster; on one machine most tasks would be empty."""

_DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_SETTINGS: Final = "log4j2.properties"
_SHUFFLE: Final = "spark.sql.shuffle.partitions"
_SHIPPING: Final = ("yarn", "k8s://")
"""Masters whose workers have their own environment, where this machine's paths do not exist."""
_ALWAYS: Final = {"spark.python.use.daemon": "true", "spark.python.worker.reuse": "true"}
"""Python workers are reused: starting one for each task takes seconds for every query."""
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""On one machine the driver needs no other address, whatever its name resolves to."""


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
    """Get or create a `SparkSession` with working defaults.

    `master`: Spark's master; by default the configured one, else `local[*]`.
    `remote`: the address of a Spark Connect server, `sc://host:port`, instead of a master.
    `conf`: settings by name, which override all others.
    `python`: the program that workers run if it is not this one; the driver needs it, too.
    `quiet`: only errors on standard error, and a progress bar only on a terminal.
    `quick_start`: Java optimises less, which helps demos and tests and slows long jobs.

    A running session is returned with `conf` applied as far as Spark can change it.
    """
    if master is not None and remote is not None:
        raise Refused("a session has a master or a remote server, not both: leave one out")
    conf_text = {name: _text(value) for name, value in (conf or {}).items()}
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    if remote is not None and remote.startswith("sc://"):
        return _build(SparkSession.builder.remote(remote), app_name, conf_text)
    running = SparkContext._active_spark_context
    if running is not None:
        return _existing(running, app_name, master, conf_text)
    where = master or conf_text.get("spark.master") or _default_master(os.environ)
    settings = _settings(where, conf_text, quiet=quiet, quick_start=quick_start)
    _name_python(os.environ, where, conf_text, python)
    builder = SparkSession.builder
    if remote is not None:
        builder = builder.remote(remote)
    elif where is not None:
        builder = builder.master(where)
    sources = _python_of_sources(os.environ, conf_text)
    with sources, _java_home(os.environ), _defaults_left_alone({*settings} - {*conf_text}):
        spark = _build(builder, app_name, settings)
    if remote is None:
        _fit_shuffles(spark)
    return spark


def _existing(
    running: SparkContext, app_name: str, master: str | None, conf_text: dict[str, str]
) -> SparkSession:
    if master is not None and running.master != master:
        raise Refused(
            f"a session runs on {running.master} already, and a process has one at a time: "
            f"stop it before you create one on {master}"
        )
    return _build(SparkSession.builder, app_name, conf_text)


def _build(builder: SparkSession.Builder, app_name: str, conf: Mapping[str, str]) -> SparkSession:
    builder = builder.appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _settings(
    master: str | None, conf_text: Mapping[str, str], *, quiet: bool, quick_start: bool
) -> dict[str, str]:
    settings = dict(_ALWAYS)
    if _is_one_machine(master):
        settings |= _LOCAL
    if quiet and not sys.stderr.isatty():
        settings["spark.ui.showConsoleProgress"] = "false"
    settings |= conf_text
    # Java uses the last of several options, so the caller's options come last.
    options = [*_java_options(conf_text, quiet, quick_start), conf_text.get(_JAVA_OPTIONS, "")]
    joined = " ".join(filter(None, options))
    return {**settings, _JAVA_OPTIONS: joined} if joined else settings


def _java_options(conf_text: Mapping[str, str], quiet: bool, quick_start: bool) -> Iterator[str]:
    if quiet and "log4j2.configurationFile" not in conf_text.get(_JAVA_OPTIONS, ""):
        yield f'"-Dlog4j2.configurationFile={files("headwater.spark").joinpath(_LOG_SETTINGS)}"'
    if quick_start:
        yield "-XX:TieredStopAtLevel=1"


def _default_master(environment: Mapping[str, str]) -> str | None:
    """`local[*]`, unless the environment may configure another master."""
    configured = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")
    if any(name in environment for name in configured):
        return None
    return environment.get("MASTER") or "local[*]"


def _is_one_machine(master: str | None) -> bool:
    return master is not None and (master == "local" or master.startswith("local["))


def _name_python(
    environment: MutableMapping[str, str],
    master: str | None,
    conf_text: Mapping[str, str],
    python: str | None,
) -> None:
    """Make workers run this Python instead of the first `python3` on PATH."""
    if python is not None:
        environment["PYSPARK_PYTHON"] = python
    elif "spark.pyspark.python" not in conf_text and not (master or "").startswith(_SHIPPING):
        environment.setdefault("PYSPARK_PYTHON", sys.executable)


@contextlib.contextmanager
def _python_of_sources(
    environment: MutableMapping[str, str], conf_text: Mapping[str, str]
) -> Iterator[None]:
    """Make the driver's Python the same path as that of the workers while Java starts.

    Spark plans a source with the driver's Python and sends its path to the executors. A path that
    only the driver has (PYSPARK_DRIVER_PYTHON) would fail there, whatever was shipped.
    """
    named = conf_text.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON")
    if named is not None and shutil.which(named) is None:
        raise Refused(
            f"{named} is not on this machine, and Spark runs a source by one path on the driver "
            "and on executors. Unpack the shipped archive where the driver starts (mkdir "
            "environment && tar -xzf environment.tar.gz -C environment), or install it "
            "everywhere alike"
        )
    with _changed(environment, _DRIVER_PYTHON, named):
        yield


@contextlib.contextmanager
def _java_home(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Set JAVA_HOME to a Java that works while Spark starts it, then restore the environment."""
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
    """Ignore warnings of a new Connect server that it cannot change settings that it has."""
    pattern = "|".join(re.escape(name) for name in sorted(names))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f"Failed to set ({pattern}) to", UserWarning)
        yield


def _fit_shuffles(spark: SparkSession) -> None:
    """On one machine, use as many shuffle partitions as cores, unless the number is set."""
    context = spark.sparkContext
    if _is_one_machine(context.master) and not context.getConf().contains(_SHUFFLE):
        cores = min(context.defaultParallelism, LOCAL_SHUFFLE_PARTITIONS_MAX)
        spark.conf.set(_SHUFFLE, str(cores))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
