from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headwater.spark import java

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


def fake_cache(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_a_sessions_java_does_not_get_the_flag_that_makes_it_warn(tmp_path: Path) -> None:
    fake_java(tmp_path / "jdk", "17")
    home = java.quiet_home({"JAVA_HOME": str(tmp_path / "jdk"), **fake_cache(tmp_path)})
    assert home is not None
    assert home.is_relative_to(tmp_path / "cache")
    ran = subprocess.run(
        [str(home / "bin" / "java"), java.SPARK_FLAG, "-x"], capture_output=True, text=True
    )
    assert ran.stdout == "got: -x\n"


@pytest.mark.parametrize(("version", "is_dropped"), [("17", False), ("24", False), ("25", True)])
def test_a_flag_for_what_a_java_no_longer_has_is_dropped(
    tmp_path: Path, version: str, is_dropped: bool
) -> None:
    fake_java(tmp_path / "jdk", version)
    home = java.quiet_home({"JAVA_HOME": str(tmp_path / "jdk"), **fake_cache(tmp_path)})
    assert home is not None
    ran = subprocess.run(
        [str(home / "bin" / "java"), java.GONE_FLAG, "-x"], capture_output=True, text=True
    )
    assert (java.GONE_FLAG in ran.stdout) is not is_dropped
    assert "got: -x" in ran.stdout


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    fake_java(tmp_path / "jdk", "17")
    (tmp_path / "cache").write_text("a file where a folder should be")
    home = java.quiet_home({"JAVA_HOME": str(tmp_path / "jdk"), **fake_cache(tmp_path)})
    assert home is not None
    assert java.probe(home / "bin" / "java") == tmp_path / "jdk"


def test_the_packaged_runtime_is_made_to_work_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_java(tmp_path / "runtime", "25", has_module=False)
    monkeypatch.setattr(java, "find", lambda _: None)
    monkeypatch.setattr(java, "packaged", lambda: path)
    home = java.quiet_home(fake_cache(tmp_path))
    assert home is not None
    assert java.probe(home / "bin" / "java") == tmp_path / "runtime"


def test_no_java_and_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "find", lambda _: None)
    monkeypatch.setattr(java, "packaged", lambda: None)
    assert java.quiet_home(fake_cache(tmp_path)) is None


def test_an_old_java_tells_its_version_all_the_same(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "jdk", "1.8")
    path.write_text(path.read_text() + "exit 1\n")
    assert java.inspect(path) == (8, tmp_path / "jdk")
