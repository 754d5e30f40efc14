"""Files that executors write and read, straight in a store. No table format is known here.

Enters: Arrow batches of a task, and a plan. Leaves: Parquet files, and what to tell of them.

Always holds: a file has a name that nobody else writes; what travels to executors holds no secret.
"""

from headwater.spark.files.parquet import WRITTEN, FilePlan, task
from headwater.spark.files.place import Place
from headwater.spark.files.reading import ReadPlan, read_task

__all__ = ["FilePlan", "Place", "ReadPlan", "WRITTEN", "read_task", "task"]
