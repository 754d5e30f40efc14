"""Data files: as a snapshot names them, and whether they may be added to a table.

A file says which table it was written for: the table's UUID is in its footer, with the field ids of
its columns. The table's name is not enough: while a job writes, the table may be dropped and
created again, and other columns then have the same field ids.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from headwater.core import portal
from headwater.core.errors import HeadwaterError, Refused
from headwater.store.locations import FileRoot

TABLE_UUID: Final = b"headwater.table-uuid"
"""Key in a data file's own metadata."""
FLOOR: Final = "headwater.orphan-floor"
"""Table property: files with ids up to this one may have been removed as orphans."""


class WrittenFile(NamedTuple):
    """A data file that is stored and not yet in a snapshot."""

    location: str
    size_bytes: int
    footer: bytes

    @property
    def rows(self) -> int:
        return int(_footer(self).num_rows)


class FilesRefused(Refused):
    """The files no longer fit the table. None of them was committed."""


def check_files_belong(table: Table, files: list[WrittenFile]) -> None:
    """Refuse files of another table, of other columns, or that may have been removed."""
    name, uuid = ".".join(table.name()), str(table.metadata.table_uuid)
    floor = table.metadata.properties.get(FLOOR, "")
    for file in files:
        footer = _footer(file)
        written_for = (footer.metadata or {}).get(TABLE_UUID, b"").decode()
        if written_for != uuid:
            raise FilesRefused(
                f"{name} is another table than the one that {file.location} was written for: it "
                f"was dropped and created again since (UUID {written_for or 'unknown'}, now "
                f"{uuid}). Nothing was committed; write the rows again"
            )
        _check_shape(table, file, index_by_id(pyarrow_to_schema(footer.schema.to_arrow_schema())))
        if file.location.rpartition("/")[2].partition(".")[0] <= floor:
            raise FilesRefused(
                f"{file.location} may have been removed: remove_orphans was run with a smaller "
                "older_than_hours than this job took. Nothing was committed; write the rows again"
            )


def _check_shape(table: Table, file: WrittenFile, columns: dict[int, NestedField]) -> None:
    """Refuse files if the table is now partitioned, lacks their columns or requires others."""
    name = ".".join(table.name())
    if not table.spec().is_unpartitioned():
        raise FilesRefused(
            f"{name} was partitioned since {file.location} was written, which has no partition. "
            "Nothing was committed; write to a table that is not partitioned"
        )
    table_columns = index_by_id(table.schema())
    gone = columns.keys() - table_columns.keys()
    if gone:
        raise FilesRefused(
            f"{name} has lost columns since {file.location} was written (field ids "
            f"{', '.join(map(str, sorted(gone)))}). Nothing was committed; write the rows again"
        )
    top = {field.field_id for field in table.schema().fields}
    nullable = sorted(
        field.name
        for number, field in table_columns.items()
        if field.required and (number in top or number in columns)
        if number not in columns or not columns[number].required
    )
    if nullable:
        raise FilesRefused(
            f"{name} requires the columns {', '.join(nullable)} since {file.location} was written, "
            "which may have nulls there. Nothing was committed; write the rows again"
        )


def to_data_files(table: Table, files: list[WrittenFile]) -> list[DataFile]:
    """The entries of the files in a manifest, with the statistics that let readers skip files."""
    return [_to_data_file(table, file) for file in files]


def _to_data_file(table: Table, file: WrittenFile) -> DataFile:
    metadata = _footer(file)
    # By the columns of the file: those of the table may have been renamed.
    schema = pyarrow_to_schema(metadata.schema.to_arrow_schema())
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=compute_statistics_plan(schema, table.metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _footer(file: WrittenFile) -> Any:
    return pq.read_metadata(pa.BufferReader(file.footer))


def manifests_of(table: Table) -> list[ManifestFile]:
    """The manifests of all snapshots, also of those of branches and tags, each once."""
    return list(
        {
            manifest.manifest_path: manifest
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
        }.values()
    )


def discard_files(root: FileRoot, files: list[WrittenFile]) -> list[str]:
    """Delete files that are in no snapshot; returns those that could not be deleted."""
    store = root.store()
    failed = []
    for file in files:
        try:
            portal.shared().call(store.delete(root.key(file.location)))
        except HeadwaterError:
            failed.append(file.location)
    return failed
