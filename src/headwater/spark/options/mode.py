"""What a data source is used for."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Mode(StrEnum):
    """The door of Spark's that was taken."""

    READ = "read"
    READ_STREAM = "readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


READING: Final = frozenset({Mode.READ, Mode.READ_STREAM})
WRITING: Final = frozenset({Mode.WRITE, Mode.WRITE_STREAM})
