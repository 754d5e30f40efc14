"""Options from what Spark hands on: known, for what is being done, and with a value that fits."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.core.errors import Refused
from headwater.spark.options.mode import READING, WRITING, Mode
from headwater.spark.options.table import ELSEWHERE, GROUP_ID, OPTIONS, SPARKS_OWN, Option

_BY_LOWER: Final = {name.lower(): option for name, option in OPTIONS.items()}
_OWN_LOWER: Final = {name.lower() for name in SPARKS_OWN}
_ELSEWHERE_LOWER: Final = {name.lower(): cure for name, cure in ELSEWHERE.items()}


def parse_options(given: Mapping[str, str], mode: Mode) -> dict[str, Any]:
    """The value of every option that there is for this mode, by name.

    Spark does not tell capitals apart in the names of options. A value that is not for an option
    of ours is never shown: it may be a secret.
    """
    parsed = {name: option.default for name, option in OPTIONS.items() if mode in option.modes}
    misplaced = []
    for name, text in given.items():
        option = _BY_LOWER.get(name.lower())
        if option is None:
            if name.lower() in _OWN_LOWER:
                continue
            raise _unknown(name, mode)
        if mode not in option.modes:
            misplaced.append(option)
            continue
        parsed[option.name] = option.parse(option.name, str(text))
    if misplaced:
        raise _misplaced(misplaced, mode)
    return _addressed(parsed)


def reading_mode(given: Mapping[str, str]) -> Mode:
    """Whether a batch or a stream is meant, from options that only one of them has."""
    known = [_BY_LOWER[name.lower()] for name in given if name.lower() in _BY_LOWER]
    of_streams = [one.name for one in known if one.modes == frozenset({Mode.READ_STREAM})]
    if of_streams and GROUP_ID not in of_streams:
        # Which of the two it is cannot be told: advice for one alone would be wrong for the other.
        raise Refused(
            f"{' and '.join(of_streams)} without {GROUP_ID}: for readStream {GROUP_ID} is missing, "
            "the name under which the query's position is kept; for read, leave "
            f"{' and '.join(of_streams)} out"
        )
    return Mode.READ_STREAM if of_streams else Mode.READ


def _addressed(parsed: dict[str, Any]) -> dict[str, Any]:
    """With the address under `url`, whichever way it was given."""
    url, path = parsed.pop("url"), parsed.pop("path")
    if url is not None and path is not None and url != path:
        raise Refused("the address is given twice, as a path and as option url: give one")
    if url is None and path is None:
        raise Refused(
            'the address of the store is missing: .load("s3://bucket/prefix"), or option url'
        )
    return {"url": url or path, **parsed}


def _misplaced(options: Sequence[Option], mode: Mode) -> Refused:
    names = [option.name for option in options]
    if "topic" in names:
        return Refused("topic names the stream to write to; to read, use subscribe")
    if "subscribe" in names:
        return Refused("subscribe names the streams to read; to write, use topic")
    told = [f"{option.name} is an option of {_where(option)}" for option in options]
    it = "it" if len(told) == 1 else "them"
    return Refused(f"{', '.join(told)}, and this is {mode}: leave {it} out")


def _where(option: Option) -> str:
    return " and ".join(str(known) for known in Mode if known in option.modes)


def _unknown(name: str, mode: Mode) -> Refused:
    lower = name.lower()
    if lower in _ELSEWHERE_LOWER:
        return Refused(f"there is no option {name}: {_ELSEWHERE_LOWER[lower]}")
    if lower.startswith("kafka."):
        return Refused(f"there is no option {name}: there is no Kafka client to configure here")
    kind = "reading" if mode in READING else "writing"
    side = READING if mode in READING else WRITING
    known = {key: option for key, option in _BY_LOWER.items() if option.modes & side}
    near = difflib.get_close_matches(lower, list(known), n=1, cutoff=0.6)
    if near:
        meant = known[near[0]]
        where = "" if mode in meant.modes else f", an option of {_where(meant)}"
        return Refused(f"there is no option {name}; did you mean {meant.name}{where}?")
    names = sorted(option.name for option in OPTIONS.values() if option.modes & side)
    return Refused(f"there is no option {name}; for {kind} there are {', '.join(names)}")
