"""Measurements, each a program of its own: `python bench/NAME.py [--quick]`."""

__all__: list[str] = []
