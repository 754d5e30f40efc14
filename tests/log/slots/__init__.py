"""Replication slots."""
