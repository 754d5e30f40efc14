"""What each of Spark's processes pays before it does anything."""

from __future__ import annotations

import subprocess
import sys


def test_the_data_source_is_imported_without_pandas() -> None:
    """Spark looks it up, makes it and plans with it in a new process each."""
    code = (
        "import sys, pyspark_headwater, headwater.spark.source, headwater.spark.sink\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
