"""What may be asked of the data source: every option in one table.

Enters: the options of a DataFrame reader or writer, as text. Leaves: `ReadOptions`, `WriteOptions`.

Always holds: an option that is not in the table, or not for what is being done, is an error that
says what was meant; nothing is asked of any store to find that out.
"""

from headwater.spark.options.read_write import ReadOptions, TimeBound, WriteOptions
from headwater.spark.options.table import OPTIONS, Option, parse_options, reading_mode
from headwater.spark.options.values import Mode, Offsets

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
