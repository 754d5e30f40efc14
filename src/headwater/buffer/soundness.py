"""Whether Arrow data are what their types say: the rule by which a batch is read.

Arrow hands on what it was given without a look: Parquet files and casts bring text that is no
UTF-8, numbers beyond their precision, indices beyond their dictionary. A batch with one such value
could not be read, nor could anything that shares the batch with it. So whoever writes checks by the
rule of whoever reads, and before anything else touches the data.
"""

from __future__ import annotations

import pyarrow as pa

from headwater.core.errors import Refused


def validate(data: pa.RecordBatch | pa.Table) -> None:
    """The rule itself; `pa.ArrowException` or `UnicodeDecodeError` if the data do not hold to it.

    Of columns without text, decimals and dictionaries this looks at offsets alone.
    """
    _ = data.schema.names  # which need not be text
    data.validate(full=True)


def check_sound(data: pa.RecordBatch | pa.Table) -> None:
    """Refuse data that nobody could read afterwards, naming the column."""
    try:
        validate(data)
    except UnicodeDecodeError as error:
        raise Refused(f"the name of a column is no text: rename it ({error})") from error
    except pa.ArrowException as error:
        raise _refused(data, error) from error


def _refused(data: pa.RecordBatch | pa.Table, error: pa.ArrowException) -> Refused:
    for name, column in zip(data.schema.names, data.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as found:
            return Refused(
                f"column {name!r} is {column.type}, and holds what is none: {_plainly(found)}"
            )
    return Refused(f"the columns are not what they say: {error}")


def _plainly(error: pa.ArrowException) -> str:
    # Arrow says "Invalid: " once for every level that it came through.
    text = str(error).replace("Invalid: ", "")
    if "UTF8" in text:
        return f"{text}. Decode the text in its own encoding first, or carry the column as binary"
    return text
