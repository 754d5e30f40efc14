"""Streams: their configuration in `stream.json`, and creating, opening, altering and deleting them.

    streams     creating, opening, altering, listing and adopting
    handle      `Stream`, an open stream: its schema, and its partitions' queues
    config      the content of `stream.json`, its settings, and its register
    schema      versions of columns, and recording the columns of producers
    fitting     fitting records to the columns
    delete      deleting a stream, or one whose register is damaged

Always holds: `stream.json` changes only by conditional writes; it records what a stream carries
before that is appended; no change of it loses a retained value; a queue is created only once.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.buffer.stream.delete import (
        DeletedReport,
        check_deletable,
        delete_damaged_stream,
        delete_stream,
    )
    from headwater.buffer.stream.handle import Stream
    from headwater.buffer.stream.streams import (
        adopt_stream,
        alter_stream,
        create_stream,
        list_streams,
        open_stream,
        open_streams,
        stream_names,
    )

__all__ = [
    "DeletedReport",
    "Stream",
    "adopt_stream",
    "alter_stream",
    "check_deletable",
    "create_stream",
    "delete_damaged_stream",
    "delete_stream",
    "list_streams",
    "open_stream",
    "open_streams",
    "stream_names",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "delete": "DeletedReport check_deletable delete_damaged_stream delete_stream",
        "handle": "Stream",
        "streams": "adopt_stream alter_stream create_stream list_streams open_stream open_streams "
        "stream_names",
    },
)
