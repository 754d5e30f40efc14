"""What a replica keeps, and images of keyed states, as they were first written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headwater.core.errors import NotSupported
from headwater.log.replica.contract import Image
from headwater.log.replica.copies import SavedState, decode_state, encode_state
from headwater.log.replica.image import decode_image, encode_image

HERE = Path(__file__).parent
KEPT = SavedState(term=7, copy=2, diverged_lsn=120, kind="log")
USERS = pa.table(
    {
        "_key": pa.array([b"a", b"b"]),
        "price": pa.array([9.5, 2.0]),
        "_operation": pa.array([1, 0], pa.int8()),
        "_lsn": pa.array([3, 5]),
    }
)


def image() -> bytes:
    """The image that is kept."""
    return encode_image({"users": [USERS], "empty": []}, 6, [2**64 - 1, 7])


def test_what_is_kept_is_written_and_read_as_it_always_was() -> None:
    golden = (HERE / "replica.2.json").read_bytes()
    assert encode_state(KEPT) == golden
    assert decode_state(golden) == KEPT


def test_what_was_kept_before_kinds_were_stays_readable() -> None:
    found = decode_state((HERE / "replica.1.json").read_bytes())
    assert found == SavedState(term=7, copy=2, diverged_lsn=120, format=1)


def test_an_image_stays_readable() -> None:
    """Its bytes are the Parquet writer's, which tells its version: only what they say is fixed."""
    data = (HERE / "image.3.parquet").read_bytes()
    found = decode_image(data, Image(6, "image.3.parquet"))
    assert found == ({"users": [USERS], "empty": []}, [2**64 - 1, 7])
    assert found == decode_image(image(), Image(6, "again"))


@pytest.mark.parametrize("name", ["image.1.parquet", "image.2.parquet"])
def test_an_image_from_before_hashes_told_units_apart_is_known_and_passed_over(name: str) -> None:
    with pytest.raises(NotSupported, match="this version reads 3"):
        decode_image((HERE / name).read_bytes(), Image(6, name))
