"""Records made ready to be appended: encoded and summed, wherever there is time for it."""

from __future__ import annotations

import pyarrow as pa

from headwater.buffer.extension_names import has_names, without_names
from headwater.core.errors import Refused
from headwater.core.limits import LOG_GROUP_BYTES
from headwater.log.record.columns import check_columns
from headwater.log.record.kept_types import check_kept
from headwater.log.record.layout import retyped
from headwater.log.record.nulls import check_nulls
from headwater.log.record.per_schema import per_schema
from headwater.log.record.views import size_bytes, with_views, without_views
from headwater.log.spool.body import Body
from headwater.log.spool.conform import filled, joined


class Draft:
    """The frames of one append, which need only their LSNs and their place.

    Good for one append that lands. After an error that changed nothing (`Unavailable`, `NoSpace`,
    `Conflict`, `Fenced`, `Refused`) it can be appended again, to this log or to another.
    """

    def __init__(self, bodies: list[Body]) -> None:
        # A list with one item or none: taking it out is one step, whichever threads try.
        self._free = [bodies]

    def take(self) -> list[Body]:
        """The frames. They are filled in where they are, so one append at a time has them."""
        try:
            return self._free.pop()
        except IndexError:
            raise Refused(
                "this draft was appended, or is being appended, or its outcome is not known: make "
                "another"
            ) from None

    def give_back(self, bodies: list[Body]) -> None:
        """The append that took these frames changed nothing."""
        self._free.append(bodies)


def draft_of(
    records: pa.RecordBatch,
    *,
    group_bytes: int = LOG_GROUP_BYTES,
    schema: pa.Schema | None = None,
) -> Draft:
    """Frames of up to `group_bytes` of records each; a single record may have more.

    `schema` is that of the segment which they will most likely go to: the columns that they lack
    are given to them here, where there is time for it.
    """
    if not records.num_rows:
        raise Refused("nothing to append: there are no records")
    check_carried(records.schema)
    check_nulls(records)
    records = _without_extension_names(records)
    given = records.schema
    if schema is not None and given != schema:
        both = joined(schema, given, rows=records.num_rows, nbytes=size_bytes(records))
        if both == schema:
            records = filled(records, schema, given=given)
    return Draft(bodies_of(records, given=given, group_bytes=group_bytes))


@per_schema
def check_carried(schema: pa.Schema) -> None:
    """Refuse columns and types that a log does not carry."""
    check_columns(schema)
    for field in schema:
        check_kept(field.name, field.type)


def _without_extension_names(records: pa.RecordBatch) -> pa.RecordBatch:
    """The same records, whose fields name no extension types: what they are read as would depend
    on who reads them."""
    bare = _bare_schema(records.schema)
    if bare is None:
        return records
    columns = [
        retyped(column, field.type) for column, field in zip(records.columns, bare, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=bare)


@per_schema
def _bare_schema(schema: pa.Schema) -> pa.Schema | None:
    """What is written instead; None if it is fine as it is."""
    return without_names(schema) if has_names(schema.serialize().to_pybytes()) else None


def draft_of_lost(lsns: int, cause: str) -> Draft:
    """A range of LSNs whose records cannot be had any more: covered, and told as lost."""
    if lsns < 1:
        raise Refused(f"a lost range has at least one LSN, not {lsns}")
    # A cause often quotes what was wrong, which need not be text.
    readable = cause.encode(errors="backslashreplace").decode()
    return Draft([Body.of_lost(lsns, readable)])


def bodies_of(records: pa.RecordBatch, *, given: pa.Schema, group_bytes: int) -> list[Body]:
    """The frames of records that came with the columns of `given`."""
    schema = records.schema
    parts = _parts(without_views(records), group_bytes)
    return [Body.of_records(with_views(part, schema), given=given) for part in parts]


def _parts(records: pa.RecordBatch, group_bytes: int) -> list[pa.RecordBatch]:
    if records.nbytes <= group_bytes or records.num_rows == 1:
        return [records]
    half = records.num_rows // 2
    left, right = records.slice(0, half), records.slice(half)
    return [*_parts(left, group_bytes), *_parts(right, group_bytes)]
