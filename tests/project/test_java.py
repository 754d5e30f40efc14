from __future__ import annotations

from pathlib import Path

from scripts import java
from tests.spark.test_java import fake_java


def test_a_machine_without_java_gets_one_installed_once(tmp_path: Path) -> None:
    installed: list[Path] = []

    def install(root: Path) -> Path:
        installed.append(root)
        return fake_java(tmp_path / "runtime", "25", has_module=False)

    for _ in range(2):
        home = java.java_home(tmp_path, {}, search=lambda _: None, install=install)
        assert home == tmp_path / ".venv" / "java"
    assert installed == [tmp_path]


def test_an_installed_java_that_does_not_start_is_no_answer(tmp_path: Path) -> None:
    home = java.java_home(
        tmp_path, {}, search=lambda _: None, install=lambda _: tmp_path / "missing" / "java"
    )
    assert home is None


def test_a_java_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    def install(root: Path) -> Path:
        raise AssertionError("nothing to install")

    found = java.java_home(tmp_path, {}, search=lambda _: tmp_path, install=install)
    assert found == tmp_path
