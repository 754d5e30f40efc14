"""Change records: what the log carries, one by one and in groups."""

from headwater.log.record.group import Group

__all__ = ["Group"]
