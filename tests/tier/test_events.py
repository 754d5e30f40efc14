"""Metadata events: their states, epochs, bytes and partitions."""

from __future__ import annotations

import base64
import itertools
import json
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import Corrupt, HeadwaterError, LimitExceeded, NotSupported, Refused
from headwater.tier import (
    EventOutcome,
    EventRejected,
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TierCache,
    TopicIdPartition,
    decode_event,
    encode_event,
    metadata_partition_for,
)
from headwater.tier.events import (
    CUSTOM_METADATA_MAX_BYTES,
    PAYLOAD_MAX_BYTES,
    partition_may_become,
    publisher_epoch_of,
    segment_may_become,
    stamp,
    unstamp,
)
from tests.tier.given import ORDERS, became, finished, partition_delete, started

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "vectors" / "kafka_events.json").read_text()
)["events"]
PLACE = TopicIdPartition(uuid.UUID(int=0xCA), "orders", 7)
SEGMENT = SegmentMetadata(
    segment_id=SegmentId(PLACE, uuid.UUID(int=0xFE)),
    start_offset=0,
    end_offset=99,
    broker_id=42,
    max_timestamp_ms=100,
    event_timestamp_ms=123,
    epochs=((0, 0), (1, 50)),
    size_bytes=4096,
)
SEGMENT_HEX = (
    "010000076f7264657273000000000000000000000000000000ca0000000700000000000000000000000000000000"
    "fe00000000000000000000000000000000630000002a0000000000000064000000000000007b0300000000000000"
    "0000000000000000000100000000000000320000001000000000"
)
UPDATE = SegmentUpdate(SEGMENT.segment_id, 42, 456, SegmentState.COPY_FINISHED)
UPDATE_HEX = (
    "010100076f7264657273000000000000000000000000000000ca0000000700000000000000000000000000000000"
    "fe000000002a00000000000001c8000100"
)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PLACES = st.builds(
    TopicIdPartition,
    topic_id=st.uuids(),
    name=st.text(max_size=20),
    partition=st.integers(0, 2**31 - 1),
)
IDS = st.builds(SegmentId, partition=PLACES, id=st.uuids())
CUSTOM = st.none() | st.binary(max_size=CUSTOM_METADATA_MAX_BYTES)
EPOCHS = st.lists(st.tuples(I32, I64), min_size=1, max_size=5, unique_by=lambda pair: pair[0]).map(
    lambda pairs: tuple(zip(sorted(e for e, _ in pairs), sorted(o for _, o in pairs), strict=True))
)


@st.composite
def segments(draw: st.DrawFn) -> SegmentMetadata:
    start, end = sorted(draw(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))))
    return SegmentMetadata(
        segment_id=draw(IDS),
        start_offset=start,
        end_offset=end,
        broker_id=draw(I32),
        max_timestamp_ms=draw(I64),
        event_timestamp_ms=draw(I64),
        epochs=draw(EPOCHS),
        size_bytes=draw(st.integers(0, 2**31 - 1)),
        state=draw(st.sampled_from(SegmentState)),
        custom_metadata=draw(CUSTOM),
        txn_index_empty=draw(st.booleans()),
    )


EVENTS: st.SearchStrategy[MetadataEvent] = st.one_of(
    segments(),
    st.builds(
        SegmentUpdate,
        segment_id=IDS,
        broker_id=I32,
        event_timestamp_ms=I64,
        state=st.sampled_from(SegmentState),
        custom_metadata=CUSTOM,
    ),
    st.builds(
        PartitionDelete,
        partition=PLACES,
        broker_id=I32,
        event_timestamp_ms=I64,
        state=st.sampled_from(PartitionDeleteState),
    ),
)


def same(one: MetadataEvent, other: MetadataEvent) -> bool:
    """Equal, and the names, too, which equality leaves out."""
    return msgspec.structs.asdict(one) == msgspec.structs.asdict(other) and _name(one) == _name(
        other
    )


def _name(event: MetadataEvent) -> str:
    place = event.partition if isinstance(event, PartitionDelete) else event.segment_id.partition
    return place.name


def uuid_of(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def place_of(decoded: dict[str, Any]) -> TopicIdPartition:
    return TopicIdPartition(uuid_of(decoded["id"]), decoded["name"], decoded["partition"])


def event_of(vector: dict[str, Any]) -> MetadataEvent:
    """What Kafka says that its bytes mean."""
    told = vector["decoded"]
    broker_id, event_ms = told["brokerId"], told["eventTimestampMs"]
    if vector["api_key"] == 2:
        state = PartitionDeleteState(told["remotePartitionDeleteState"])
        return PartitionDelete(place_of(told["topicIdPartition"]), broker_id, event_ms, state)
    named = told["remoteLogSegmentId"]
    segment = SegmentId(place_of(named["topicIdPartition"]), uuid_of(named["id"]))
    custom = told["customMetadata"] and base64.b64decode(told["customMetadata"])
    state_now = SegmentState(told["remoteLogSegmentState"])
    if vector["api_key"] == 1:
        return SegmentUpdate(segment, broker_id, event_ms, state_now, custom)
    return SegmentMetadata(
        segment_id=segment,
        start_offset=told["startOffset"],
        end_offset=told["endOffset"],
        broker_id=broker_id,
        max_timestamp_ms=told["maxTimestampMs"],
        event_timestamp_ms=event_ms,
        epochs=tuple((one["leaderEpoch"], one["offset"]) for one in told["segmentLeaderEpochs"]),
        size_bytes=told["segmentSizeInBytes"],
        state=state_now,
        custom_metadata=custom,
        txn_index_empty=told.get("txnIndexEmpty", False),
    )


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_kafka_s_bytes_are_read_and_written(vector: dict[str, Any]) -> None:
    data, event = bytes.fromhex(vector["hex"]), event_of(vector)
    assert same(decode_event(data), event)
    assert encode_event(event) == data
    assert data[1] == vector["api_key"]


def test_all_vectors_are_there() -> None:
    assert len(VECTORS) == 16
    assert {vector["api_key"] for vector in VECTORS} == {0, 1, 2}


@pytest.mark.parametrize(
    ("event", "text"), [(SEGMENT, SEGMENT_HEX), (UPDATE, UPDATE_HEX)], ids=["segment", "update"]
)
def test_the_published_examples(event: MetadataEvent, text: str) -> None:
    assert encode_event(event).hex() == text
    assert decode_event(bytes.fromhex(text)) == event


@given(EVENTS)
def test_every_event_that_can_be_made_is_read_as_it_was_written(event: MetadataEvent) -> None:
    assert same(decode_event(encode_event(event)), event)


def test_names_that_differ_are_written_as_they_are_also_for_the_same_partition() -> None:
    renamed = TopicIdPartition(PLACE.topic_id, "renamed", PLACE.partition)
    assert renamed == PLACE
    for place in (PLACE, renamed, PLACE):
        found = decode_event(
            encode_event(PartitionDelete(place, 1, 2, PartitionDeleteState.MARKED))
        )
        assert _name(found) == place.name


# What is refused to be read


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_an_event_cut_off_anywhere_is_corrupt(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for length in range(len(data)):
        with pytest.raises(Corrupt, match="offset"):
            decode_event(data[:length])


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_bytes_after_an_event_are_corrupt(vector: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="1 bytes follow"):
        decode_event(bytes.fromhex(vector["hex"]) + b"\0")


@pytest.mark.parametrize("head", ["000000", "020000", "010001", "010400", "017f00"])
def test_another_frame_api_key_or_version_is_not_supported(head: str) -> None:
    with pytest.raises(NotSupported, match="upgrade"):
        decode_event(bytes.fromhex(head + UPDATE_HEX[6:]))


def test_a_segment_snapshot_is_named_and_not_read() -> None:
    with pytest.raises(NotSupported, match="snapshot of a segment"):
        decode_event(bytes.fromhex("010300" + UPDATE_HEX[6:]))


def spoiled(text: str, at: int, replacement: str) -> bytes:
    """An example with other bytes from an offset on."""
    data = bytearray.fromhex(text)
    new = bytes.fromhex(replacement)
    data[at : at + len(new)] = new
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (spoiled(SEGMENT_HEX, 3, "00"), "name is missing"),
        (spoiled(SEGMENT_HEX, 4, "ff"), "not UTF-8"),
        (spoiled(SEGMENT_HEX, 3, "ffffffff7f"), "varint"),
        (spoiled(SEGMENT_HEX, 3, "ffffffff0f"), "bytes are announced"),
        (spoiled(SEGMENT_HEX, 26, "ff"), "partition"),
        (spoiled(SEGMENT_HEX, 48, "ff"), "not a range"),
        (spoiled(SEGMENT_HEX, 48, "0000000000000064"), "not a range"),
        (spoiled(SEGMENT_HEX, 84, "00"), "array is missing"),
        (spoiled(SEGMENT_HEX, 84, "ffffffff0f"), "do not fit"),
        (spoiled(SEGMENT_HEX, 98, "00000000"), "epochs rise"),
        (spoiled(SEGMENT_HEX, 102, "ff"), "offsets do not fall"),
        (spoiled(SEGMENT_HEX, 111, "ff"), "a segment of"),
        (spoiled(SEGMENT_HEX, 116, "04"), "no state 4"),
        (spoiled(SEGMENT_HEX, 116, "ff"), "no state -1"),
        (spoiled(SEGMENT_HEX, 117, "05"), "tagged fields"),
        (spoiled(SEGMENT_HEX, 117, "01000201 01"), "2 bytes and not one"),
        (spoiled(SEGMENT_HEX, 117, "02000101000101"), "comes twice"),
        (spoiled(SEGMENT_HEX, 117, "01000901"), "tag 0 has 9 bytes"),
    ],
)
def test_damage_says_what_and_where(data: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=why) as raised:
        decode_event(data)
    assert "offset" in str(raised.value)


def test_no_epochs_at_all_is_corrupt() -> None:
    head, tail = SEGMENT_HEX[:168], SEGMENT_HEX[222:]
    with pytest.raises(Corrupt, match="at least one leader epoch"):
        decode_event(bytes.fromhex(head + "01" + tail))


def test_a_state_of_a_partition_that_is_none_is_corrupt() -> None:
    data = bytearray.fromhex(VECTORS[-1]["hex"])
    data[-2] = 3
    with pytest.raises(Corrupt, match="no state 3"):
        decode_event(bytes(data))


def test_custom_metadata_above_their_limit_are_refused_on_both_sides() -> None:
    most = msgspec.structs.replace(UPDATE, custom_metadata=bytes(CUSTOM_METADATA_MAX_BYTES))
    assert decode_event(encode_event(most)) == most
    with pytest.raises(LimitExceeded, match="at most 128 bytes"):
        msgspec.structs.replace(UPDATE, custom_metadata=bytes(CUSTOM_METADATA_MAX_BYTES + 1))
    longer = encode_event(most).replace(
        b"\x81\x01" + bytes(CUSTOM_METADATA_MAX_BYTES),
        b"\x82\x01" + bytes(CUSTOM_METADATA_MAX_BYTES + 1),
    )
    with pytest.raises(LimitExceeded, match="at most 128 bytes"):
        decode_event(longer)


@pytest.mark.parametrize("at", [30, 47, 97, 117])
def test_tagged_fields_of_a_newer_writer_are_passed_over(at: int) -> None:
    data = bytes.fromhex(SEGMENT_HEX)
    assert data[at] == 0
    tagged = data[:at] + bytes.fromhex("010903aabbcc") + data[at + 1 :]
    assert decode_event(tagged) == SEGMENT


# Fuzz


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_the_documented_errors(data: bytes) -> None:
    _read_or_refused(data)
    for head in ("010000", "010100", "010200"):
        _read_or_refused(bytes.fromhex(head) + data)


@given(
    st.sampled_from(VECTORS),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_no_damaged_event_raises_anything_but_the_documented_errors(
    vector: dict[str, Any], changes: list[tuple[int, int]]
) -> None:
    data = bytearray.fromhex(vector["hex"])
    for at, value in changes:
        data[at % len(data)] = value
    _read_or_refused(bytes(data))


def _read_or_refused(data: bytes) -> None:
    try:
        event = decode_event(data)
    except (Corrupt, NotSupported, LimitExceeded):
        return
    # Unknown tags and long varints are read and not written again.
    assert same(decode_event(encode_event(event)), event)


# What is refused to be made


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"start_offset": -1}, "starts at 0"),
        ({"end_offset": -1}, "starts at 0"),
        ({"end_offset": 2**63}, "starts at 0"),
        ({"broker_id": 2**31}, "32 bits"),
        ({"max_timestamp_ms": 2**63}, "64 bits"),
        ({"event_timestamp_ms": -(2**63) - 1}, "64 bits"),
        ({"size_bytes": 2**31}, "bytes"),
        ({"size_bytes": -1}, "bytes"),
        ({"epochs": ()}, "at least one"),
        ({"epochs": ((1, 0), (0, 5))}, "epochs rise"),
        ({"epochs": ((1, 0), (1, 5))}, "epochs rise"),
        ({"epochs": ((0, 5), (1, 4))}, "do not fall"),
        ({"epochs": ((2**31, 0),)}, "32 and 64 bits"),
        ({"custom_metadata": bytes(129)}, "at most 128"),
    ],
)
def test_an_event_that_makes_no_sense_cannot_be_made(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        msgspec.structs.replace(SEGMENT, **changes)


@pytest.mark.parametrize(
    ("name", "partition", "kind"),
    [
        ("orders", -1, Refused),
        ("orders", 2**31, Refused),
        ("\ud800", 0, Refused),
        ("x" * 32_768, 0, LimitExceeded),
        ("α" * 16_384, 0, LimitExceeded),
    ],
)
def test_a_partition_that_cannot_be_written_cannot_be_made(
    name: str, partition: int, kind: type[HeadwaterError]
) -> None:
    with pytest.raises(kind):
        TopicIdPartition(PLACE.topic_id, name, partition)


def test_identity_ignores_the_name() -> None:
    renamed = TopicIdPartition(PLACE.topic_id, "renamed", 7)
    assert (renamed == PLACE, hash(renamed) == hash(PLACE)) == (True, True)
    assert SegmentId(renamed, UPDATE.segment_id.id) == UPDATE.segment_id
    assert TopicIdPartition(PLACE.topic_id, "orders", 8) != PLACE
    assert TopicIdPartition(uuid.UUID(int=0xCB), "orders", 7) != PLACE
    assert PLACE != "orders"
    assert (PLACE == "orders") is False


def test_a_stream_s_id_is_the_topic_id() -> None:
    stream_id = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    place = TopicIdPartition.of_stream(stream_id, "orders", 3)
    assert str(place) == f"orders-3 ({stream_id})"
    with pytest.raises(Refused, match="UUID"):
        TopicIdPartition.of_stream("orders", "orders", 3)


def test_an_epoch_ends_before_the_next_one_in_the_segment() -> None:
    assert (SEGMENT.last_offset_of(0), SEGMENT.last_offset_of(1)) == (49, 99)


# What may follow what: every pair of states.


SEGMENT_STEPS = {
    (None, 0),
    *((state, state) for state in range(4)),
    (0, 1),
    (0, 2),
    (1, 2),
    (2, 3),
}
PARTITION_STEPS = {(None, 0), *((state, state) for state in range(3)), (0, 1), (1, 2)}


@pytest.mark.parametrize(("now", "then"), [*itertools.product([None, *range(4)], range(4))])
def test_a_segment_goes_only_where_kafka_lets_it(now: int | None, then: int) -> None:
    before = None if now is None else SegmentState(now)
    assert segment_may_become(before, SegmentState(then)) == ((now, then) in SEGMENT_STEPS)


@pytest.mark.parametrize(("now", "then"), [*itertools.product([None, *range(3)], range(3))])
def test_a_partition_s_deletion_goes_only_where_kafka_lets_it(now: int | None, then: int) -> None:
    before = None if now is None else PartitionDeleteState(now)
    allowed = partition_may_become(before, PartitionDeleteState(then))
    assert allowed == ((now, then) in PARTITION_STEPS)


# Whose events count: what an older leader publishes after a newer one changes nothing.


@given(st.integers(0, 2**64 - 1), st.binary(max_size=PAYLOAD_MAX_BYTES))
def test_a_stamp_is_read_as_it_was_made(epoch: int, payload: bytes) -> None:
    assert unstamp(stamp(epoch, payload)) == (epoch, payload)


def test_the_bytes_of_a_stamp() -> None:
    assert stamp(258, b"x").hex() == "48574d31" + "0000000000000102" + "78"


@pytest.mark.parametrize("custom", [None, b"", b"\x00\x01\x02\xff", b"HWM2" + bytes(8), b"HWM"])
def test_custom_metadata_of_others_name_no_publisher(custom: bytes | None) -> None:
    assert unstamp(custom) == (None, custom or b"")
    assert publisher_epoch_of(became(1, SegmentState.COPY_FINISHED, custom=custom), 9) is None


def test_what_does_not_fit_is_refused_and_what_is_cut_off_is_corrupt() -> None:
    with pytest.raises(LimitExceeded):
        stamp(1, bytes(PAYLOAD_MAX_BYTES + 1))
    for epoch in (-1, 2**64):
        with pytest.raises(Refused):
            stamp(epoch)
    cut_off = became(1, SegmentState.COPY_FINISHED, custom=stamp(1)[:-1])
    cache = TierCache()
    cache.apply(started(1, 0, 9))
    with pytest.raises(Corrupt, match="HWM1"):
        cache.apply(cut_off)
    assert cache.partition(ORDERS).segment_at(0, 5) is None


def test_after_a_newer_leader_an_older_one_changes_nothing() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    cache.apply(started(2, 0, 9, publisher=6))
    known = cache.partition(ORDERS).segments()
    for event in (
        finished(1, publisher=5),
        became(2, SegmentState.DELETE_STARTED, publisher=5),
        started(3, 10, 19, publisher=5),
    ):
        assert cache.apply(event) is EventOutcome.STALE
    assert cache.apply(partition_delete(PartitionDeleteState.MARKED), 5) is EventOutcome.STALE
    assert (cache.partition(ORDERS).segments(), cache.partition(ORDERS).delete_state) == (
        known,
        None,
    )
    assert cache.apply(finished(2, publisher=6)) is EventOutcome.CHANGED
    assert cache.partition(ORDERS).publisher_epoch == 6


def test_the_epoch_of_one_partition_is_not_that_of_another() -> None:
    other = type(ORDERS)(ORDERS.topic_id, "orders", 1)
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=6))
    event = started(2, 0, 9, publisher=5, partition=other)
    assert cache.apply(event) is EventOutcome.CHANGED


def test_events_without_an_epoch_follow_the_states_alone() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=6))
    assert cache.apply(finished(1)) is EventOutcome.CHANGED
    assert cache.apply(started(2, 10, 19)) is EventOutcome.CHANGED
    assert cache.apply(partition_delete(PartitionDeleteState.MARKED)) is EventOutcome.CHANGED
    # They neither raise what was there nor lower it.
    assert cache.partition(ORDERS).publisher_epoch == 6
    assert cache.apply(started(3, 20, 29, publisher=5)) is EventOutcome.STALE


def test_an_event_that_is_rejected_raises_no_epoch() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    with pytest.raises(EventRejected):
        cache.apply(finished(2, publisher=9))
    assert cache.partition(ORDERS).publisher_epoch == 5
    assert cache.apply(finished(1, publisher=5)) is EventOutcome.CHANGED


def test_an_event_that_only_repeats_raises_the_epoch() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    assert cache.apply(started(1, 0, 9, publisher=6)) is EventOutcome.REPEATED
    assert cache.apply(finished(1, publisher=5)) is EventOutcome.STALE


def test_a_deletion_beside_which_an_epoch_stands_raises_it_and_outlives_the_partition() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    for state in PartitionDeleteState:
        assert cache.apply(partition_delete(state), 7) is EventOutcome.CHANGED
    assert cache.partitions() == []
    assert cache.partition(ORDERS).publisher_epoch == 7
    assert cache.apply(started(2, 0, 9, publisher=6)) is EventOutcome.STALE
    assert cache.partitions() == []
    assert cache.apply(partition_delete(PartitionDeleteState.FINISHED), 8) is EventOutcome.REPEATED
    assert cache.partition(ORDERS).publisher_epoch == 8
    assert cache.apply(started(3, 0, 9, publisher=8)) is EventOutcome.CHANGED
    assert cache.partition(ORDERS).publisher_epoch == 8


# Which metadata partition an event goes to.


@pytest.mark.parametrize(
    ("topic_id", "partition", "expected"), [(0xCA, 7, 31), (0x1, 0, 35), (0x1, 1, 6)]
)
def test_it_is_the_one_that_kafka_chooses(topic_id: int, partition: int, expected: int) -> None:
    place = TopicIdPartition(uuid.UUID(int=topic_id), "orders", partition)
    assert metadata_partition_for(place, 50) == expected


def test_the_upper_half_of_the_id_counts_and_the_name_does_not() -> None:
    low, high = uuid.UUID(int=1), uuid.UUID(int=1 | 5 << 64)
    chosen = [metadata_partition_for(TopicIdPartition(one, "a", 0), 2**20) for one in (low, high)]
    assert chosen[0] != chosen[1]
    assert metadata_partition_for(TopicIdPartition(low, "b", 0), 2**20) == chosen[0]


def test_every_number_is_in_range() -> None:
    top = uuid.UUID(int=2**128 - 1)
    for partition in (0, 1, 2**31 - 1):
        for count in (1, 2, 50):
            found = metadata_partition_for(TopicIdPartition(top, "a", partition), count)
            assert 0 <= found < count


def test_there_is_at_least_one_partition() -> None:
    with pytest.raises(Refused):
        metadata_partition_for(TopicIdPartition(uuid.UUID(int=1), "a", 0), 0)
