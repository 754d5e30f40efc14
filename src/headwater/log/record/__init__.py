"""Records of the log, and groups of them.

group        records of one term and schema with consecutive LSNs; the newest of them in memory; the
             interface of a log
change       one change record, its published JSON form, and its conversion to groups and back
hashes       what two copies of the log compare
arrow_types  which Arrow types a log carries, and how Parquet stores them
"""

__all__: list[str] = []
