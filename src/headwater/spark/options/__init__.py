"""Options of the data source: every option in one table.

Enters: the options of a DataFrame reader or writer, as text. Leaves: `ReadOptions`, `WriteOptions`.

Always holds: an option that is not in the table, or not for this mode, is an error that suggests
the right one; parsing sends no request to a store.
"""

from headwater.spark.options.read_write import ReadOptions, TimeBound, WriteOptions
from headwater.spark.options.table import OPTIONS, Mode, Option, parse_options, reading_mode
from headwater.spark.options.values import Offsets

__all__ = [
    "Mode",
    "OPTIONS",
    "Offsets",
    "Option",
    "ReadOptions",
    "TimeBound",
    "WriteOptions",
    "parse_options",
    "reading_mode",
]
