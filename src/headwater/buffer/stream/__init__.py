"""A stream: what `stream.json` says of it, and who opens, changes and deletes it.

Enters: a name and settings. Leaves: `Stream`, with a door to each partition's queue.

    streams                    made, opened, changed and listed
    handle                     a stream that was opened: its doors and its schema
    config, settings, changes  what is kept, how it is spelled, what may be asked of it
    schema, fit                columns, their versions, and rows put under them
    recording                  what a stream carries, recorded as it comes
    register, queues           where it is kept, and the queue that each partition has
    source                     where it is found: an address, a store, or here it is
    adopt                      going on where another implementation consumed
    delete, deleted            its end, and how others learn of it
    delete_damaged             the end of one whose register cannot be read

Always holds: `stream.json` changes by conditional writes alone; it says what a stream carries
before that is appended; no change of it loses a retained value; a queue that was made once is never
made again.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

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
