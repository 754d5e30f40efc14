"""DataFrames into Iceberg tables, exactly once, with nothing but a store.

Enters: a DataFrame, batch or streaming. Leaves: one snapshot of a table for each micro-batch.

    file_io            how pyiceberg gets at files
    target             which table is meant
    pointers, catalog  which metadata is a table's present one
    shape              columns of a DataFrame as columns of a table
    holdable           those that no table can hold; difference, those that one does not have
    data_files         what executors wrote, as a snapshot names it
    token, commit      one snapshot a micro-batch, and no second one
    sweep, orphans     metadata that nobody needs any more; data files that nothing names
    writing            to_table; reading, load and read

Always holds:

- a snapshot carries who wrote it (query, batch); before one is added, it is looked for;
- a commit whose outcome is unknown is settled by looking, and never repeated blindly;
- a data file is deleted only when it is certain that no snapshot names it.
"""

from headwater.spark.table.catalog import RegisterCatalog
from headwater.spark.table.commit import Commit
from headwater.spark.table.file_io import StoreFileIO
from headwater.spark.table.orphans import Orphans, remove_orphans
from headwater.spark.table.target import load

__all__ = [
    "Commit",
    "Orphans",
    "RegisterCatalog",
    "StoreFileIO",
    "load",
    "remove_orphans",
]
