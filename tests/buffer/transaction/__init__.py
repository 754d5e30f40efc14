"""Transactions of sinks."""
