"""How segments are written as Parquet: for readers that skip what they need not read.

Sorted by LSN, with an index of pages and their checksums, and a bloom filter on the key. A column
has a dictionary where the first records say that its values come again: to try one for every row
group and give it up again costs more than it saves. Whole numbers and times that are close to each
other (ids that are counted up, quantities) are kept by their differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.buffer.records import HEADERS, KEY, VALUE
from headwater.log.record.columns import METADATA, REFRESH_RECORDS
from headwater.tier.segments.field_ids import LSN, children
from headwater.tier.segments.plan import SegmentConfig
from headwater.tier.segments.sink import HashingSink

KEY_FALSE_POSITIVES: Final = 0.01
SAMPLE_ROWS: Final = 8192
BY_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
OPAQUE: Final = frozenset({VALUE, HEADERS, METADATA, REFRESH_RECORDS})
"""Nobody asks for these by less and more, and their smallest and largest may be long."""


def open_writer(
    sink: HashingSink, schema: pa.Schema, first: pa.Table, config: SegmentConfig
) -> pq.ParquetWriter:
    """A writer of row groups that are much like the first one."""
    blooms = None
    if KEY in schema.names:
        blooms = {KEY: {"ndv": max(1, first.num_rows), "fpp": KEY_FALSE_POSITIVES}}
    sample = first.slice(0, SAMPLE_ROWS)
    dictionaries = list(_with_dictionaries(schema, sample))
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        schema,
        compression=config.compression,
        compression_level=config.compression_level,
        use_dictionary=dictionaries,
        column_encoding=dict.fromkeys(_by_differences(sample, dictionaries), BY_DIFFERENCES),
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options=blooms,
        sorting_columns=[pq.SortingColumn(0)],
        write_statistics=[
            leaf
            for field in schema
            if field.name not in OPAQUE
            for leaf in _leaves(field.name, field.type)
        ],
        store_schema=False,
    )


def _with_dictionaries(schema: pa.Schema, sample: pa.Table) -> Iterator[str]:
    for field in schema:
        if field.name == LSN:
            continue
        if pa.types.is_nested(field.type):
            yield from _leaves(field.name, field.type)
        elif pa.types.is_null(field.type):
            continue
        elif 2 * pc.count_distinct(sample.column(field.name)).as_py() <= sample.num_rows:
            yield field.name


def _by_differences(sample: pa.Table, dictionaries: list[str]) -> Iterator[str]:
    # LSNs are all different, and their differences all the same.
    yield LSN
    for field in sample.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
        if not is_number or field.name == LSN or field.name in dictionaries:
            continue
        bounds = pc.min_max(sample.column(field.name).cast(pa.int64()))
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        # Numbers that take more than half of their bits would only take longer to write and read.
        if least is not None and (most - least) >> field.type.bit_width // 2 == 0:
            yield field.name


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The columns that Parquet makes of one, by its own names."""
    if not pa.types.is_nested(kind):
        yield path
        return
    between = ".list" if pa.types.is_list(kind) else ".key_value" if pa.types.is_map(kind) else ""
    for field in children(kind):
        yield from _leaves(f"{path}{between}.{field.name}", field.type)
