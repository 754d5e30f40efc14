"""How bytes and times look: to a person on one line, and to a machine as JSON."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

SHOWN_MAX: Final = 60
_ESCAPE: Final = re.compile(r"\\(t|0|\\|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
_ESCAPED: Final = {"t": "\t", "0": "\0", "\\": "\\"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def bytes_words(data: bytes, max_shown: int = SHOWN_MAX) -> str:
    """Text in quotes where the bytes are text, else hexadecimal digits; cut where it is long."""
    text = text_of(data)
    if text is None:
        cut = data[: max_shown // 2]
        return f"0x{cut.hex()}" + ("…" if len(cut) < len(data) else "")
    return f'"{cut_text(visible(text), max_shown)}"'


def unescaped(text: str) -> str:
    r"""What was meant by '\t', '\0', '\x1f' or '\\' in an argument, which shells pass as it is."""
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1]) or chr(int(found[1][1:], 16)), text)


def bytes_json(data: bytes) -> str | dict[str, str]:
    """Text where the bytes are UTF-8, else {"base64": …}: JSON has no bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def text_of(data: bytes) -> str | None:
    """The bytes as text, if they are text that can be printed."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\t\r\n" for c in text) else None


def visible(text: str) -> str:
    """The text with everything that would move a cursor or colour a screen spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut_text(text: str, max_shown: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= max_shown else text[: max_shown - 1] + "…"


def time_words(time_ms: int) -> str:
    """A time in milliseconds since 1970 as a person reads it; as a number if it is no date."""
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms:,} ms since 1970"
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} UTC"


def json_value(value: Any) -> Any:
    """A value as JSON has it: what it cannot hold becomes text."""
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, dict):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    return str(value)
