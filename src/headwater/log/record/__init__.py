"""Records of the log: groups of them, single change records, and hashes to compare copies.

change         one change record, its published JSON form, and its conversion to groups and back
group          records of one term and schema with consecutive LSNs; the newest of them in memory
hashes         what two copies of the log compare
layout         other types for the same memory, views, nulls, Python rows
parquet_types  the Parquet type in which each column is stored
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
