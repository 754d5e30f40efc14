"""Change records: what the log carries, one by one and in groups.

change        one change record, and its published JSON form
columns       the Arrow columns of many
group         records that stand in the log one after the other
rows          from one to the other
python_rows   records as Python's own values
hashing       what two copies of the log compare
range_hashes  the same of many groups, off the event loop
kept_types    the types of columns, and those that Parquet keeps them in
kept_columns  columns to those types, and back
layout        the same memory under another type
nulls         where none may be
per_schema    what is known of a schema, worked out once
views         columns that share their data, counted and cut
"""

from headwater.log.record.change import ChangeRecord, changes_of, group_of
from headwater.log.record.group import GROUP_SCHEMA, Group, consumed_records
from headwater.log.record.hashes import range_hash, record_hashes

__all__ = [
    "ChangeRecord",
    "GROUP_SCHEMA",
    "Group",
    "changes_of",
    "consumed_records",
    "group_of",
    "range_hash",
    "record_hashes",
]
