from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import java

NOWHERE = Path("/nonexistent/java_home")


def fake_java(home: Path, version: str, *, has_module: bool = True) -> Path:
    """A Java that answers as the real one does, and refuses a module it does not have."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    refusal = f'[ "$1" = "{java.SPARK_FLAG}" ] && exit 1' if not has_module else ":"
    path.write_text(
        f"#!/bin/sh\n{refusal}\n"
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
        'for argument do echo "got: $argument"; done\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def find(
    environment: dict[str, str], *system_homes: Path, mac_finder: Path = NOWHERE
) -> Path | None:
    return java.find(environment, system_homes, mac_finder)


@pytest.mark.parametrize(
    ("version", "is_usable"),
    [("1.8", False), ("11", False), ("17", True), ("21", True), ("25", True)],
)
def test_only_java_17_and_newer_will_do(tmp_path: Path, version: str, is_usable: bool) -> None:
    path = fake_java(tmp_path / "jdk", version)
    assert java.probe(path) == (tmp_path / "jdk" if is_usable else None)


def test_a_java_without_the_module_spark_asks_for_will_not_do(tmp_path: Path) -> None:
    assert java.probe(fake_java(tmp_path / "jdk", "21", has_module=False)) is None


def test_a_java_that_does_not_run_will_not_do(tmp_path: Path) -> None:
    assert java.probe(tmp_path / "java") is None


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "named", "17")
    fake_java(tmp_path / "on-path", "21")
    environment = {"JAVA_HOME": str(tmp_path / "named"), "PATH": str(tmp_path / "on-path" / "bin")}
    assert find(environment) == tmp_path / "named"


def test_an_old_java_home_is_passed_over_for_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "named", "11")
    fake_java(tmp_path / "on-path", "21")
    environment = {"JAVA_HOME": str(tmp_path / "named"), "PATH": str(tmp_path / "on-path" / "bin")}
    assert find(environment) == tmp_path / "on-path"


def test_the_home_behind_a_link_on_path_is_what_java_says(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "jdk", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(path)
    assert find({"PATH": str(links)}) == tmp_path / "jdk"


def test_the_systems_homes_come_after_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "jvm" / "java-11", "11")
    fake_java(tmp_path / "jvm" / "java-17", "17")
    assert find({}, tmp_path / "jvm") == tmp_path / "jvm" / "java-17"


def test_the_mac_finder_is_asked_last(tmp_path: Path) -> None:
    fake_java(tmp_path / "mac", "21")
    finder = tmp_path / "java_home"
    finder.write_text(f'#!/bin/sh\n[ "$*" = "-v 17+" ] && echo "{tmp_path / "mac"}"\n')
    finder.chmod(0o755)
    assert find({}, mac_finder=finder) == tmp_path / "mac"


def test_no_java_at_all(tmp_path: Path) -> None:
    assert find({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}, tmp_path / "jvm") is None


def test_the_wrapper_drops_the_flag_and_nothing_else(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "runtime", "25", has_module=False)
    home = java.wrap(path, tmp_path / "wrapped")
    arguments = ["-cp", "a b", java.SPARK_FLAG, "", "$HOME", "--add-modules=java.sql"]
    ran = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    kept = [argument for argument in arguments if argument != java.SPARK_FLAG]
    assert ran.stdout.splitlines() == [f"got: {argument}" for argument in kept]


def test_a_wrapper_named_as_java_home_stays_the_answer(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "runtime", "25", has_module=False)
    home = java.wrap(path, tmp_path / "wrapped")
    assert find({"JAVA_HOME": str(home)}) == home


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
