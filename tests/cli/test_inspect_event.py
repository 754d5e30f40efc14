"""`headwater inspect event`: what a metadata event says, and what is wrong with a bad one."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.tier import TierCache, encode_event
from headwater.tier.eventlog import EventDelivered
from headwater.tier.eventlog.stored_events import encode_event_object
from headwater.tier.events import SegmentState, stamp
from headwater.tier.snapshot import Snapshot, dump_all, encode_snapshot
from tests.tier.given import became, started

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "tier" / "vectors" / "kafka_events.json").read_text()
)["events"]
KINDS = ("segment", "update of a segment", "partition delete")


def told(data: bytes | str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["inspect", "event", "-", "--json"], input=data)
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if found["good"] else 1)
    return found


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_every_event_of_kafka_is_good(vector: dict[str, Any]) -> None:
    found, decoded = told(vector["hex"]), vector["decoded"]
    assert (found["good"], found["kind"]) == (True, f"metadata event, {KINDS[vector['api_key']]}")
    place = decoded.get("topicIdPartition") or decoded["remoteLogSegmentId"]["topicIdPartition"]
    assert (found["stream"], found["partition"]) == (place["name"], place["partition"])
    assert found["event_timestamp_ms"] == decoded["eventTimestampMs"]
    if vector["api_key"] == 0:
        shown = [(one["epoch"], one["first_offset"]) for one in found["epochs"]]
        epochs = decoded["segmentLeaderEpochs"]
        assert shown == [(one["leaderEpoch"], one["offset"]) for one in epochs]


def test_the_publisher_s_epoch_is_shown_beside_the_rest_of_the_custom_metadata(
    tmp_path: Path,
) -> None:
    event = became(1, SegmentState.COPY_FINISHED, custom=stamp(9, b"rest"))
    (tmp_path / "event").write_bytes(encode_event(event))
    result = CliRunner().invoke(app, ["inspect", "event", str(tmp_path / "event"), "--json"])
    found = json.loads(result.stdout)
    assert (found["publisher_epoch"], found["custom_metadata"]) == (9, "rest")


@pytest.mark.parametrize(
    ("data", "check", "error"),
    [
        (encode_event(started(1, 0, 9))[:-5], "fields", "Corrupt"),
        (encode_event(started(1, 0, 9)) + b"\0", "end", "Corrupt"),
        (
            encode_event(started(1, 5, 9)).replace(b"\x05", b"\x0a"),
            "contents",
            "Corrupt",
        ),
        (b"\x01\x03\x00rest", "kind", "NotSupported"),
        (b"RDLW" + bytes(40), "kind", "Corrupt"),
        (
            encode_event(became(1, SegmentState.COPY_FINISHED, custom=bytes(128))).replace(
                b"\x81\x01" + bytes(128), b"\x82\x01" + bytes(129)
            ),
            "limit",
            "LimitExceeded",
        ),
        (
            encode_event(became(1, SegmentState.COPY_FINISHED, custom=b"HWM1cut")),
            "custom metadata",
            "Corrupt",
        ),
    ],
    ids=["cut off", "longer", "ends before it begins", "snapshot", "log", "limit", "stamp"],
)
def test_a_bad_event_says_which_check_failed(data: bytes, check: str, error: str) -> None:
    [problem] = told(data.hex())["problems"]
    assert (problem["check"], problem["error"]) == (check, error)
    # What is not supported, or too large, says itself what is the matter.
    assert bool(problem["advice"]) == (error == "Corrupt")


def test_an_event_where_something_else_was_asked_for_is_recognised() -> None:
    data = encode_event(started(1, 0, 9))
    result = CliRunner().invoke(app, ["inspect", "wal", "-", "--json"], input=data.hex())
    [problem] = json.loads(result.stdout)["problems"]
    assert "looks like a metadata event" in problem["message"]
    assert "inspect event" in problem["advice"]


def test_nothing_at_all_in_a_file_is_bad(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    result = CliRunner().invoke(app, ["inspect", "event", str(tmp_path / "empty")])
    assert result.exit_code == 1
    assert "no metadata event is written so" in result.stdout


LOG_ID = uuid.UUID(int=77)
OFFSET_5 = "metadata/3/00000000000000000005"


def event_object() -> bytes:
    payload = encode_event(started(1, 0, 9))
    return encode_event_object(LOG_ID, EventDelivered(3, 5, payload, 4), bytes(range(16)))


def told_of(path: Path, data: bytes) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    result = CliRunner().invoke(app, ["inspect", "event", str(path), "--json"])
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if found["good"] else 1)
    return found


def test_an_object_of_a_stored_log_shows_where_it_stands_and_who_wrote_it(tmp_path: Path) -> None:
    found = told_of(tmp_path / OFFSET_5, event_object())
    assert (found["good"], found["kind"]) == (True, "metadata event, segment")
    assert (found["log_id"], found["log_partition"], found["log_offset"]) == (str(LOG_ID), 3, 5)
    assert (found["epoch_beside"], found["token"]) == (4, bytes(range(16)).hex())
    assert found["size_bytes"] == len(event_object())


def test_an_object_of_a_stored_log_under_another_name_is_bad(tmp_path: Path) -> None:
    [problem] = told_of(tmp_path / "metadata/3/00000000000000000006", event_object())["problems"]
    assert problem["check"] == "name"
    assert "event 5 of metadata partition 3" in problem["message"]


@pytest.mark.parametrize(
    ("data", "check", "words"),
    [
        (event_object()[:-1] + b"?", "checksum", "fails its checksum"),
        (event_object()[:20], "object", "is not an event of the tier's log (20 bytes)"),
        (b"ruin" + event_object()[4:], "object", "is not an event of the tier's log"),
    ],
    ids=["changed", "cut off", "beginning"],
)
def test_a_damaged_object_of_a_stored_log_is_called_damaged(
    tmp_path: Path, data: bytes, check: str, words: str
) -> None:
    found = told_of(tmp_path / OFFSET_5, data)
    [problem] = found["problems"]
    assert (problem["check"], problem["error"]) == (check, "Corrupt")
    assert words in problem["message"]
    assert "upgrade" not in problem["message"]


def test_a_snapshot_of_events_shows_what_is_known(tmp_path: Path) -> None:
    cache = TierCache()
    for event in (started(1, 0, 9), became(1, SegmentState.COPY_FINISHED), started(2, 10, 19)):
        cache.apply(event)
    data = encode_snapshot(Snapshot(LOG_ID, 50, 3, 41, tuple(dump_all(cache))))
    name = f"metadata/3/snapshot-{41:020d}-{7:032x}"
    found = told_of(tmp_path / name, data)
    assert (found["good"], found["log_id"], found["segments"]) == (True, str(LOG_ID), 2)
    assert (found["metadata_partition"], found["through_offset"]) == (3, 41)
    [known] = found["known"]
    assert (known["listed"], known["finished"], known["highest_offset"]) == (2, 1, 9)

    [problem] = told_of(tmp_path / name.replace("41", "40"), data)["problems"]
    assert problem["check"] == "name"
    [problem] = told_of(tmp_path / name, data[:-1] + b"?")["problems"]
    assert (problem["check"], problem["error"]) == ("checksum", "Corrupt")
