"""Logs of other implementations: whatever order, numbers and records they have."""

from __future__ import annotations

import json

import pytest

from headwater.core.errors import Refused
from headwater.log.record import record_hashes
from headwater.log.spool import SpoolCorrupt
from headwater.log.spool.frame import encode_frame
from tests.log.given import contents, numbered, opened, planted, spans

NAME = "x.logical.wal"


def frame(lsn: int, payload: bytes = b"payload") -> bytes:
    return encode_frame(payload, term=1, lsn=lsn, timestamp_ms=5)


@pytest.mark.parametrize(
    "lsns", [(1, 3, 2, 4), (1, 3, 2), (1, 2, 2), (3, 2), (5, 1), (1, 2, 9, 3, 4)]
)
def test_whole_frames_that_are_out_of_order_are_never_cut_off(lsns: tuple[int, ...]) -> None:
    data = b"".join(map(frame, lsns))
    disk = planted({NAME: data})
    with pytest.raises(SpoolCorrupt, match=r"stands behind .* in the order of their LSNs"):
        opened(disk)
    assert contents(disk)[NAME] == data
    # Also where the file was taken over by somebody who did not look.
    disk = planted({f"{lsns[0]:020d}.wal": data})
    with pytest.raises(SpoolCorrupt, match="stands behind"):
        opened(disk)
    assert data in contents(disk).values()


def test_a_whole_frame_behind_damage_is_not_cut_off_though_its_lsn_is_lower() -> None:
    data = frame(1) + frame(5) + b"damaged" + frame(3)
    disk = planted({NAME: data})
    with pytest.raises(SpoolCorrupt, match="LSN 3 stands behind"):
        opened(disk)
    assert contents(disk)[NAME] == data


def change(**fields: object) -> bytes:
    return json.dumps({"operation": "insert", "rid": 1} | fields).encode()


@pytest.mark.parametrize(
    "payload",
    [
        change(rid=2**63),
        change(rid=2**64 - 1),
        change(timestamp=1_794_840_234_788_000_000),
        change(timestamp=2**64 - 1),
        change(collection="\ud800"),
        change(kind="\ud800"),
        change(headers=[["\ud800", None]]),
        change(metadata={"a": "\ud800"}),
        b'{"operation":"insert","rid":' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_record_beyond_our_types_is_taken_as_a_value(payload: bytes, place: int) -> None:
    frames = [frame(lsn, payload if lsn == place else change()) for lsn in (1, 2, 3)]
    disk = planted({NAME: b"".join(frames)})
    spool = opened(disk)
    groups = spool.read_since_blocking(0)
    assert groups[place - 1].records.column("_value").to_pylist() == [payload]
    assert all(len(record_hashes(group)) == 1 for group in groups)
    assert spool.append_blocking(numbered(4, 1), term=2) == (4, 4)
    spool.close_blocking()
    assert opened(disk).current_lsn() == 4


def test_numbers_that_were_left_out_are_read_as_lost_so_that_readers_come_past_them() -> None:
    spool = opened(planted({NAME: frame(1) + frame(2) + frame(10)}))
    groups = spool.read_since_blocking(0)
    assert spans(groups) == [(1, 1), (2, 2), (3, 9), (10, 10)]
    assert "left out" in (groups[2].lost or "")
    assert spans(spool.read_since_blocking(5)) == [(6, 9), (10, 10)]
    assert spans(spool.read_since_blocking(1, max_records=3)) == [(2, 2), (3, 4)]


def test_numbers_beyond_ours_are_refused_before_anything_is_touched() -> None:
    disk = planted({NAME: frame(2**63 - 1) + frame(2**63)})
    with pytest.raises(Refused, match="ends with LSN"):
        opened(disk)
    assert NAME in contents(disk)
