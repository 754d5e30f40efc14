"""`headwater inspect batch|manifest`: what an object holds, and exactly what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from headwater.buffer.batch import Batch, Call, Calls, encode_parts
from headwater.buffer.compression import Compression
from headwater.buffer.producer.call import with_column
from headwater.buffer.records import KEY, from_values
from headwater.cli.app import app
from headwater.cli.inspect_command import split_key
from headwater.cli.report import bytes_words, text_of, time_words, visible
from headwater.core.errors import BadUrl
from headwater.store import open_store
from tests.cli.conftest import Invoke
from tests.interop.servers import Server

VECTORS = Path(__file__).parents[1] / "buffer" / "vectors"
ID = "01J5T4R3KXBMZ7QV9N2WSP8YDH"


def vectors(file: str, part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / f"{file}.json").read_text())[part]
    return found


def inspect(kind: str, data: bytes, *options: str) -> Result:
    """`headwater inspect KIND -` with these bytes on standard input."""
    return CliRunner().invoke(app, ["inspect", kind, "-", *options], input=data)


def told(kind: str, data: bytes, *options: str) -> dict[str, Any]:
    result = inspect(kind, data, "--json", *options)
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if found["good"] else 1)
    return found


def problem(kind: str, data: bytes) -> dict[str, Any]:
    [found] = told(kind, data)["problems"]
    return dict(found)


@pytest.fixture
def native() -> bytes:
    records = with_column(from_values([b"hello", b"\x00\xff", None]), KEY, [b"k", None, b"\xfe"])
    calls = Calls.of([Call(0, 1_700_000_000_000, b"at 1"), Call(2, 1_700_000_000_005, None)])
    ordered = records.select(["_key", "_value"])
    return bytes(encode_parts(Batch(ID, ordered, calls), Compression.ZSTD).together())


# Published v1


@pytest.mark.parametrize("name", vectors("v1_batches", "batches"))
def test_every_published_batch_is_good(name: str) -> None:
    vector = vectors("v1_batches", "batches")[name]
    found = told("batch", vector["hex"].encode(), "--records=100")
    assert (found["kind"], found["good"]) == ("published v1 batch", True)
    assert found["records"] == len(vector["records"])
    assert found["compression"] == vector["compression"]
    shown = [row["_value"] for row in found.get("first_records", [])]
    assert [one if isinstance(one, str) else None for one in shown] == [
        bytes.fromhex(record).decode() if _is_text(bytes.fromhex(record)) else None
        for record in vector["records"]
    ]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("name", vectors("v1_odd", "batch"))
def test_every_odd_batch_is_judged_as_its_reader_judges_it(name: str) -> None:
    vector = vectors("v1_odd", "batch")[name]
    result = inspect("batch", vector["hex"].encode())
    assert result.exit_code == (0 if vector["read"] == "always" else 1), result.output
    assert ("Other implementations read it" in result.stdout) == (vector["read"] == "leniently")


@pytest.mark.parametrize(
    ("name", "check", "offset", "says"),
    [
        ("short_6_bytes", "length", None, "6 bytes"),
        ("version_2", "version", 30, "upgrade Headwater"),
        ("compression_255", "compression", 25, "code 255"),
        ("count_plus_1", "records", 25, "the length of record 3"),
        ("count_100_million", "record count", 26, "100,000,000"),
        ("record_len_u32max", "records", 0, "4,294,967,295 bytes, and 3 are left"),
        ("trailing_3_junk_bytes_in_block", "bytes after the last record", 25, "3 bytes follow"),
        ("zstd_empty_block_zero_records", "decompression", 0, "cut off"),
        ("zstd_trailing_junk", "decompression", 34, "no zstd frame at offset 34"),
        ("zstd_flag_none_on_zstd_block", "records", 0, "is its compression code damaged?"),
    ],
)
def test_a_bad_batch_names_check_offset_and_cure(
    name: str, check: str, offset: int | None, says: str
) -> None:
    found = problem("batch", vectors("v1_odd", "batch")[name]["hex"].encode())
    assert (found["check"], found["offset"]) == (check, offset)
    assert says in found["message"]
    assert found["advice"] or "upgrade" in found["message"]


@pytest.mark.parametrize("name", vectors("v1_manifests", "manifests"))
def test_every_published_manifest_is_good(name: str) -> None:
    vector = vectors("v1_manifests", "manifests")[name]
    found = told("manifest", vector["hex"].encode())
    assert found["good"]
    assert found["entries"] == len(vector["entries"])
    assert (found["next_sequence"], found["epoch"]) == (vector["next_sequence"], vector["epoch"])
    assert [row["location"] for row in found["pending_entries"]] == [
        entry["location"] for entry in vector["entries"]
    ]
    items = [item for entry in vector["entries"] for item in entry["metadata"]]
    listed = [(row["first_record"], row["ingestion_time_ms"]) for row in found.get("metadata", [])]
    assert listed == [(start, time_ms) for start, time_ms, _ in items]


@pytest.mark.parametrize("name", vectors("v1_odd", "manifest"))
def test_every_odd_manifest_is_judged_as_its_reader_judges_it(
    name: str, invoke: Invoke, tmp_path: Path
) -> None:
    vector = vectors("v1_odd", "manifest")[name]
    (tmp_path / "manifest").write_bytes(bytes.fromhex(vector["hex"]))
    result = invoke("inspect", "manifest", str(tmp_path / "manifest"))
    assert result.exit_code == (0 if vector["read"] == "always" else 1), result.output
    assert ("Other implementations read it" in result.stdout) == (vector["read"] == "leniently")


@pytest.mark.parametrize(
    ("name", "check", "offset"),
    [
        ("version_0", "version", 45),
        ("count_minus_1", "bytes after the last entry", 25),
        ("count_u32max", "entry count", 68),
        ("entry_len_u32max", "entry", 0),
        ("entry_len_plus_1_first", "bytes after the last metadata item", 25),
        ("location_len_plus_1", "location", 0),
        ("location_len_minus_1", "metadata count", 20),
        ("metadata_count_plus_1_last", "metadata count", 46),
        ("payload_len_u32max", "metadata item", 25),
        ("junk_4_bytes_before_footer", "bytes after the last entry", 68),
        ("descending_sequences", "sequences", 25),
        ("next_sequence_below_entries", "sequences", None),
    ],
)
def test_a_bad_manifest_names_check_and_offset(name: str, check: str, offset: int | None) -> None:
    found = problem("manifest", vectors("v1_odd", "manifest")[name]["hex"].encode())
    assert (found["check"], found["offset"]) == (check, offset)


def test_a_manifest_in_words() -> None:
    vector = vectors("v1_manifests", "manifests")["m12_negative_timestamps"]
    text = inspect("manifest", vector["hex"].encode()).stdout
    assert "1969-12-31 23:59:59.999 UTC" in text
    assert "-9,223,372,036,854,775,808 ms since 1970" in text
    assert '"neg"' in text


# Native


def test_a_native_batch_in_words(native: bytes) -> None:
    text = inspect("batch", native).stdout
    assert text.startswith(f"✓ native batch, HWB1, {len(native)} bytes: good")
    assert re.search(rf"id +{ID}", text)
    assert re.search(r"compression +zstd", text)
    assert re.search(r"checksum +XXH3 [0-9a-f]{16} matches", text)
    assert re.search(r'0 +0 +2 +2023-11-14 22:13:20.000 UTC +"at 1"', text)
    assert re.search(r"1 +2 +1 +2023-11-14 22:13:20.005 UTC +–", text)
    assert re.search(r'0 +"k" +"hello"', text)
    assert re.search(r"1 +– +0x00ff", text)


def test_a_native_batch_for_machines(native: bytes) -> None:
    found = told("batch", native, "--records=1")
    assert (found["records"], found["calls"], found["id"]) == (3, 2, ID)
    assert [column["column"] for column in found["columns"]] == ["_key", "_value"]
    assert found["first_records"] == [{"record": 0, "_key": "k", "_value": "hello"}]
    assert found["first_records_total"] == 3
    assert told("batch", native, "--records=3")["first_records"][1]["_value"] == {"base64": "AP8="}


def test_typed_columns_are_shown_as_they_are() -> None:
    records = pa.record_batch({"id": pa.array([7], pa.int64()), "at": pa.array([0.5])})
    data = bytes(encode_parts(Batch(ID, records, Calls.of([Call(0, 5, None)]))).together())
    found = told("batch", data)
    assert [column["type"] for column in found["columns"]] == ["int64", "double"]
    assert found["first_records"] == [{"record": 0, "id": 7, "at": 0.5}]


def test_a_damaged_native_batch_names_check_and_offset(native: bytes) -> None:
    size = len(native)
    flipped = bytearray(native)
    flipped[40] ^= 1
    assert problem("batch", bytes(flipped))["check"] == "checksum"
    assert problem("batch", bytes(flipped))["offset"] == size - 12
    assert "id_in_footer" in told("batch", bytes(flipped))
    cut = problem("batch", native[: size // 2])
    assert (cut["check"], "cut off" in cut["message"]) == ("magic at the end", True)
    more = problem("batch", native + b"more!")
    assert "ends with b'ore!'" in more["message"]
    assert "5 bytes follow it" in more["message"]
    beheaded = problem("batch", b"\0\0\0\0" + native[4:])
    assert (beheaded["check"], beheaded["offset"]) == ("magic", 0)
    middle_gone = problem("batch", native[:100] + native[110:])
    assert middle_gone["check"] == "sizes"
    assert "10 are missing" in middle_gone["message"]
    assert problem("batch", native[:20])["check"] == "length"
    later = problem("batch", b"HWB2" + native[4:-4] + b"HWB2")
    assert "Upgrade Headwater" in later["message"]


def test_a_batch_under_another_name_is_noticed(
    native: bytes, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / ID).write_bytes(native)
    assert invoke("inspect", "batch", str(tmp_path / ID)).exit_code == 0
    other = tmp_path / ID.replace("J", "K")
    other.write_bytes(native)
    result = invoke("inspect", "batch", str(other))
    assert result.exit_code == 1
    assert "failed check: name" in result.stdout
    assert "copied or renamed" in result.stdout


# What it is not


@pytest.mark.parametrize(
    ("asked", "data", "says"),
    [
        ("batch", b'{"register":1,', "it looks like a register"),
        ("batch", b"HWC1" + bytes(20), "it looks like a chunk of a native queue"),
        ("manifest", b"HWB1" + bytes(90), "it looks like a native batch"),
        ("manifest", b"PAR1" + bytes(40), "it looks like a Parquet file"),
        ("queue", b"HWB1" + bytes(90), "it looks like a native batch"),
        ("batch", bytes(20) + b"\1\0", "it looks like a published v1 manifest"),
        ("queue", bytes(5) + b"\1\0", "it looks like a published v1 batch"),
    ],
)
def test_an_object_of_another_kind_is_recognised(asked: str, data: bytes, says: str) -> None:
    found = problem(asked, data)
    assert found["check"] == "kind"
    assert says in found["message"]


def test_any_text_is_no_batch_of_either_kind() -> None:
    result = inspect("batch", b"This is a text file, and nothing else.\n")
    assert result.exit_code == 1
    assert "no batch that is known" in result.stdout
    assert "does not begin with HWB1" in result.stdout


@pytest.mark.parametrize("kind", ["batch", "manifest", "queue"])
def test_an_empty_object_is_said_to_be_empty(kind: str, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / ID).write_bytes(b"")
    result = invoke("inspect", kind, str(tmp_path / ID))
    assert result.exit_code == 1
    assert result.stdout.partition("\n")[0].endswith(", but an empty object, 0 bytes: BAD")
    assert "failed check: length" in result.stdout
    assert "it has no bytes" in result.stdout
    nothing = inspect(kind, b"")
    assert (nothing.exit_code, nothing.stdout) == (2, "")
    assert "standard input was empty" in nothing.stderr
    assert "backup" not in nothing.stderr


# Where it comes from


def test_hexadecimal_text_may_have_blanks_and_a_prefix() -> None:
    for text in (b"00 00000000\n0100\n", b"0x00000000000100", b"00000000000100"):
        assert told("batch", text)["records"] == 0
    assert told("batch", bytes.fromhex("00000000000100"))["records"] == 0
    odd = inspect("batch", b"00000000000")
    assert odd.exit_code == 2
    assert "one is missing" in odd.stderr


def test_an_object_in_a_directory_by_its_address(
    native: bytes, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_bytes(native)
    assert invoke("inspect", "batch", f"file://{tmp_path}/a%20file").exit_code == 0


def test_an_object_in_a_bucket(invoke: Invoke, ministack: Server) -> None:
    async def fill() -> None:
        async with open_store(f"{ministack.url}inspect") as store:
            await store.put("deep/er/manifest", bytes(20) + b"\1\0")

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ministack.env.items():
            patch.setenv(name, value)
        asyncio.run(fill())
    url = f"{ministack.url}inspect/deep/er"
    good = invoke("inspect", "manifest", f"{url}/manifest", **ministack.env)
    assert good.exit_code == 0, good.stderr
    assert "nothing is pending" in good.stdout
    absent = invoke("inspect", "manifest", f"{url}/nothing", **ministack.env)
    assert (absent.exit_code, absent.stdout) == (2, "")


def test_what_cannot_be_read_at_all_has_another_status(invoke: Invoke, tmp_path: Path) -> None:
    for place, says in (
        (str(tmp_path / "nothing"), "there is no file"),
        (str(tmp_path), "is a directory"),
        ("s3://bucket", "name an object in it"),
        ("memory://some/key", "memory://some/key does not exist"),
    ):
        result = invoke("inspect", "batch", place)
        assert result.exit_code == 2, place
        assert says in result.stderr
        assert result.stdout == ""


def test_a_key_is_split_off_an_address() -> None:
    assert split_key("s3://b/p/q/key?endpoint=http://h:1") == (
        "s3://b/p/q?endpoint=http://h:1",
        "key",
    )
    assert split_key("gs://b/key") == ("gs://b", "key")
    with pytest.raises(BadUrl):
        split_key("s3://b/p/")


# How bytes look


def test_bytes_are_text_where_they_can_be_printed() -> None:
    assert bytes_words(b"a\tb") == '"a\\tb"'
    assert bytes_words(b"\x1b[31m") == "0x1b5b33316d"
    assert bytes_words(b"x" * 100, 10) == '"xxxxxxxxx…"'
    assert bytes_words(b"\xff" * 100, 8) == "0xffffffff…"
    assert text_of("é".encode()) == "é"
    assert visible("a\x1bb\n") == "a\\x1bb\\n"
    assert time_words(0) == "1970-01-01 00:00:00.000 UTC"
