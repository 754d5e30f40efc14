"""Comparisons with what one would pick instead; each program here says what it compares."""

__all__: list[str] = []
