"""Measurements, each a program of its own: `python -m bench.NAME [--quick]`."""

__all__: list[str] = []
