"""`headwater inspect`: what an object of the buffer, the log or the tier holds, and what is wrong.

Enters: the bytes of one object, or a partition. Leaves: a report, in words or as JSON.

Always holds:

- nothing is written, opened or fenced;
- the verdict is that of the reader that everybody uses: what is called good here is read
  everywhere else, and what is called bad is refused there.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.cli.inspection.batch import inspect_batch
    from headwater.cli.inspection.chunk import inspect_chunk
    from headwater.cli.inspection.manifest import inspect_manifest
    from headwater.cli.inspection.report import Problem, Report
    from headwater.cli.inspection.source import Source, read_source

__all__ = [
    "Problem",
    "Report",
    "Source",
    "inspect_batch",
    "inspect_chunk",
    "inspect_manifest",
    "read_source",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "batch": "inspect_batch",
        "chunk": "inspect_chunk",
        "manifest": "inspect_manifest",
        "report": "Problem Report",
        "source": "Source read_source",
    },
)
