"""A query that dies between its sink's commit and Spark's own: run as a program, and killed.

python -m tests.spark.killed_table_query FOLDER BATCH
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from headwater.spark import session, to_table
from headwater.table import commit as commits

SCHEMA = "id long, name string"


def main(folder: str, fatal_batch: int) -> None:
    real = commits.commit_files

    def fatal(catalog: Any, name: str, files: Any, token: Any, **options: Any) -> Any:
        done = real(catalog, name, files, token, **options)
        if token.version == fatal_batch:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    commits.commit_files = fatal
    spark = session(master="local[2]", quick_start=True)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    query: Any = to_table(
        source,
        "shop.orders",
        warehouse=f"file://{folder}/warehouse",
        checkpoint_location=f"{folder}/checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
