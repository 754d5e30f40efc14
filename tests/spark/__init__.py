"""Headwater on a real Spark."""
