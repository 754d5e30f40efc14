"""Iceberg tables. For builders; users: docs/spark-table.md, docs/api.md.

They need nothing but a store: no catalog server, no database, no lock, no Spark.

Enters: data files that are stored already. Leaves: one snapshot of a table for each version that
an application commits.

    catalog, pointers   a pyiceberg catalog: which metadata file is the current one of a table
    file_io             how pyiceberg reads and writes files
    reference           which table is meant, and in which catalog
    data_files          Parquet files as a snapshot names them
    commit              one snapshot for each version, and no second one
    metadata_sweep      removes metadata files that commits made obsolete
    orphans             removes data files that no snapshot names

Always holds:

- a snapshot names the application and the version it was written by; a commit looks for both
  before it adds a snapshot;
- a commit with an unknown outcome is settled by reading the table, and never repeated blindly;
- a data file is deleted only when no snapshot names it and none ever will.
"""

from headwater.table.catalog import RegisterCatalog
from headwater.table.commit import WriteResult
from headwater.table.file_io import StoreFileIO
from headwater.table.orphans import OrphanFiles, remove_orphans
from headwater.table.reference import load

__all__ = [
    "OrphanFiles",
    "RegisterCatalog",
    "StoreFileIO",
    "WriteResult",
    "load",
    "remove_orphans",
]
