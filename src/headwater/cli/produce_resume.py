"""`headwater produce --resume`: continues an input exactly where an earlier run ended.

The metadata of every call say how many records of the input were read at its end. The last accepted
batch of a partition has that position: of the records before it, all that belong to this partition
are accepted, and of the records after it none. So each partition skips the records that it has.
This requires that a record goes to the same partition in every run: by its key, by `--partition`,
or, without keys, by the record's number.

Always holds: the records of one call are in one batch of each partition, so an accepted batch has
one position, however a run ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.partitioner import partition_keys
from headwater.buffer.producer import BlockingProducer
from headwater.buffer.producer.open_batches import BATCH_ROWS
from headwater.buffer.producer.record_columns import cut
from headwater.buffer.records import KEY, VALUE
from headwater.cli.produce_input import InputCall, InputPiece
from headwater.core.errors import Refused

TURN_RECORDS: Final = 65_536
"""Records without a key that go to one partition before the next one takes its turn."""
_TAKE_ANOTHER: Final = "Use another --producer-id, and send the input from its start"


class InputPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the metadata of a call say."""

    input_records: int
    """How many records of the input were read when the call ended."""
    partitions: int
    """Of the stream: with another number, keys are in other partitions."""
    partition: int | None
    """The one that was named for all records, if one was."""
    keyed_by: str | None = None
    """The option that gives records their keys, where those decide on partitions; none where keys
    are in the input, or there are none."""


class OtherInput(Refused):
    """The input is not the one that earlier runs under the id sent."""


class Resumption:
    """Turns pieces of the input into calls, without what was accepted in earlier runs."""

    def __init__(
        self, producer: BlockingProducer, partition: int | None, keyed_by: str | None = None
    ) -> None:
        """`Refused` where the producer's earlier batches do not tell how far the input was."""
        self._producer = producer
        self._stream = producer.stream
        self._partition = partition
        self._cut_bytes = max(1, producer.settings.batch_bytes // 2)
        self._read = 0
        if producer.stream.config.format == "v1":
            raise Refused("--resume: streams in the published v1 format do not record producers")
        count = producer.stream.partitions
        if count > 1 and partition is None and producer.settings.partitioner != "key":
            raise Refused(
                "--resume: the partitioner does not give a record the same partition in every run. "
                "Leave the setting out, or name a --partition"
            )
        self._keyed_by = keyed_by if count > 1 and partition is None else None
        self._done = [
            _position(producer, number, partition, self._keyed_by) for number in range(count)
        ]
        if partition is not None:
            self._done = [self._done[partition]] * count

    @property
    def first(self) -> int:
        """How many leading records of the input were accepted in earlier runs, all of them."""
        return min(self._done)

    @property
    def last(self) -> int:
        """After so many records of the input, nothing was accepted in earlier runs."""
        return max(self._done)

    def calls(self, piece: InputPiece) -> Iterator[InputCall]:
        """What of a piece has to be sent."""
        start, self._read = self._read, self._read + piece.rows
        if self._read <= self.first:
            return
        for batch in self._batches(piece):
            for records, _ in cut(batch, self._cut_bytes, BATCH_ROWS):
                yield from self._unsent(records, start)
                start += records.num_rows

    def check_whole(self) -> None:
        """Refuse an input that ended before what was accepted of it: it is another one."""
        if self._read < self.last:
            raise OtherInput(
                f"the input has {self._read:,} records, and earlier runs with this id read "
                f"{self.last:,}: it is another input. {_TAKE_ANOTHER}"
            )

    def _batches(self, piece: InputPiece) -> list[pa.RecordBatch]:
        """The records as the stream carries them: their size decides where they are cut."""
        columns = piece.columns
        if columns is None:
            lists = {KEY: piece.keys, VALUE: piece.values}
            columns = pa.record_batch(
                {
                    name: pa.array(column, pa.binary())
                    for name, column in lists.items()
                    if column is not None
                }
            )
        return self._producer.fit(columns)

    def _unsent(self, records: pa.RecordBatch, start: int) -> Iterator[InputCall]:
        if self._stream.partitions == 1 or self._partition is not None:
            skipped = min(records.num_rows, max(0, self.first - start))
            yield from self._call(records.slice(skipped), self._partition, start + records.num_rows)
        elif KEY in records.schema.names:
            yield from self._keyed(records, start)
        else:
            yield from self._in_turns(records, start)

    def _keyed(self, records: pa.RecordBatch, start: int) -> Iterator[InputCall]:
        keys, end = records.column(KEY), start + records.num_rows
        if keys.null_count:
            row = start + pc.index(pc.is_null(keys), True).as_py() + 1
            raise Refused(
                f"--resume: record {row:,} has no key, but others have, so its partition may "
                "change between runs. Use --partition for all of them"
            )
        if start < self.last:
            of_row = partition_keys(keys, self._stream.partitions)
            done = pa.array(self._done, pa.int64()).take(of_row)
            places = pa.array(range(start, end), pa.int64())
            records = records.filter(pc.greater_equal(places, done))
        yield from self._call(records, None, end)

    def _in_turns(self, records: pa.RecordBatch, start: int) -> Iterator[InputCall]:
        at = 0
        while at < records.num_rows:
            place = start + at
            rows = min(records.num_rows - at, TURN_RECORDS - place % TURN_RECORDS)
            partition = place // TURN_RECORDS % self._stream.partitions
            skipped = min(rows, max(0, self._done[partition] - place))
            part = records.slice(at + skipped, rows - skipped)
            yield from self._call(part, partition, place + rows)
            at += rows

    def _call(
        self, records: pa.RecordBatch, partition: int | None, end: int
    ) -> Iterator[InputCall]:
        if records.num_rows:
            position = InputPosition(end, self._stream.partitions, self._partition, self._keyed_by)
            metadata = msgspec.json.encode(position)
            yield InputCall(None, None, records, records.num_rows, partition, metadata, end)


def refuse_without_resume(producer: BlockingProducer) -> None:
    """Refuse to produce without positions under an id whose batches have some.

    A later --resume would take those for what the newest run came to.
    """
    for number, resumed in producer.resumed.items():
        if _decoded(resumed.metadata) is not None:
            raise Refused(
                f"{producer.producer_id!r} was used with --resume in partition {number}: use "
                f"--resume again, or another --producer-id"
            )


def _position(
    producer: BlockingProducer, number: int, partition: int | None, keyed_by: str | None
) -> int:
    """How far the input is settled in a partition."""
    resumed = producer.resumed[number]
    who = f"{producer.producer_id!r} in partition {number}"
    if not resumed.producer_sequence:
        others = any(one.producer_sequence for one in producer.resumed.values())
        if others and not resumed.is_known and partition in (None, number):
            raise Refused(
                f"--resume: {who} is unknown: its batches there are deleted and it was "
                f"forgotten, or the partition is new. {_TAKE_ANOTHER}"
            )
        return 0
    found = _decoded(resumed.metadata)
    if found is None:
        raise Refused(
            f"--resume: the batches of {who} have no position of their input: they were sent "
            f"without --resume. {_TAKE_ANOTHER}"
        )
    if (found.partitions, found.partition) != (producer.stream.partitions, partition):
        named = "none" if found.partition is None else str(found.partition)
        raise Refused(
            f"--resume: {who} sent to {found.partitions} partitions with --partition {named}, and "
            f"now there are {producer.stream.partitions} with --partition "
            f"{'none' if partition is None else partition}: records would go elsewhere. "
            f"{_TAKE_ANOTHER}"
        )
    if found.keyed_by != keyed_by:
        raise Refused(
            f"--resume: {who} sent with {found.keyed_by or 'no option for keys'}, and now there is "
            f"{keyed_by or 'none'}: records would go elsewhere. {_TAKE_ANOTHER}"
        )
    return found.input_records


def _decoded(metadata: bytes | None) -> InputPosition | None:
    try:
        return None if metadata is None else msgspec.json.decode(metadata, type=InputPosition)
    except msgspec.DecodeError:
        return None
