"""What users set: names with suggestions, values with units and bounds, and credentials.

Every parser of settings uses these functions, so that all accept the same spellings and all errors
say the same: which setting, what was given, what is accepted, and which known name is closest.
"""

from __future__ import annotations

import hmac
import math
import operator
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NoReturn

from headwater.core.errors import Refused

_FOREVER_WORDS: Final = frozenset({"-1", "forever", "for ever", "infinite", "unlimited"})
_AMOUNT: Final = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_DURATION_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "days": 86_400_000,
    "w": 7 * 86_400_000,
}
_SIZE_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DURATION_FORMS: Final = "7d, 12h, 30min, 10s or 500ms"
_SIZE_FORMS: Final = "8MiB, 64KiB or 1GB"
_FLAGS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


# Names


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name that a misspelled one probably means. Case does not count."""
    import difflib  # slow to import, and needed only for errors

    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(name).lower(), list(by_lower), n=1)
    return by_lower[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the closest known one, or all of them."""
    names = list(known)
    near = closest(name, names)
    if near is not None:
        return f"; did you mean {near}?"
    return f"; known: {', '.join(sorted(names)) or 'none'}"


class SettingNames:
    """The names of one kind of settings, with the spellings that other software uses for them.

    `.` and `-` count as `_`, so that Kafka's spelling of a name is accepted where it differs in
    nothing else.
    """

    def __init__(
        self,
        kind: str,
        names: Iterable[str],
        *,
        aliases: Mapping[str, str] | None = None,
        refused: Mapping[str, str] | None = None,
        fixed: Mapping[str, tuple[tuple[str, ...], str]] | None = None,
    ) -> None:
        """`kind` completes "is not a setting of …". `refused` gives the reason for names that
        have no meaning here, `fixed` the accepted values and the reason for those that no user
        can change; the first value is shown."""
        self._kind = kind
        self._names = frozenset(names)
        self._aliases = dict(aliases or {})
        self._refused = dict(refused or {})
        self._fixed = dict(fixed or {})

    def resolve(self, given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
        """Our name for each setting, with the given spelling (for errors) and the value."""
        resolved: dict[str, tuple[str, Any]] = {}
        for spelling, value in given.items():
            if spelling in self._fixed:
                self._check_fixed(spelling, value)
                continue
            name = self._name_of(spelling)
            if name in resolved:
                raise Refused(
                    f"{resolved[name][0]} and {spelling} are the same setting: give one of them"
                )
            resolved[name] = spelling, value
        return resolved

    def _name_of(self, spelling: str) -> str:
        if spelling in self._refused:
            raise Refused(f"{spelling} is not a setting of {self._kind}: {self._refused[spelling]}")
        name = self._aliases.get(spelling) or re.sub(r"[.-]", "_", spelling)
        if name in self._names:
            return name
        dotted = (one.replace("_", ".") for one in self._names if "." in spelling)
        hint = closest(spelling, [*self._names, *self._aliases, *dotted])
        end = f"; did you mean {hint}?" if hint else f"; known: {', '.join(sorted(self._names))}"
        raise Refused(f"{spelling} is not a setting of {self._kind}{end}")

    def _check_fixed(self, spelling: str, value: object) -> None:
        accepted, why = self._fixed[spelling]
        if str(value).lower() not in accepted:
            raise Refused(f"{spelling} is always {accepted[0]}, not {value!r}: {why}")


# Values


def whole_number(
    name: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """`value` as an int, also from numpy's integers; `Refused` names the accepted range.

    A bool is refused, although Python counts it as an int: `True` would be batch 1.
    """
    try:
        if not isinstance(value, bool):
            number = operator.index(value)  # type: ignore[arg-type]
            if (at_least is None or number >= at_least) and (at_most is None or number <= at_most):
                return number
    except TypeError:
        pass
    raise Refused(f"{name} is {value!r}: it must be a whole number{_range(at_least, at_most)}")


def parse_whole_number(
    name: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """As `whole_number`, also from text such as 1,000, which configuration files contain."""
    if isinstance(value, str) and (found := _AMOUNT.fullmatch(value.strip())) and not found[2]:
        digits = found[1].replace(",", "").replace("_", "")
        value = int(digits) if digits.isdecimal() else value
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return whole_number(name, value, at_least=at_least, at_most=at_most)


def seconds(name: str, value: object) -> float:
    """`value` as a finite number of seconds above 0."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return value
    raise Refused(f"{name} is {value!r}: it must be a number of seconds above 0")


def check_above_zero(settings: object, *names: str) -> None:
    """Refuse settings whose attributes of these names are not numbers above 0."""
    for name in names:
        value = getattr(settings, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not value > 0:
            raise Refused(f"{name} is {value!r}: it must be above 0")


def parse_duration_ms(name: str, value: object) -> int:
    """Milliseconds, from a number of them, a timedelta, or text such as 7d, 12h, 500 ms."""
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    return _amount(name, value, _DURATION_MS, "ms", _DURATION_FORMS)


def parse_size_bytes(name: str, value: object) -> int:
    """Bytes, from a number of them, or text such as 8MiB."""
    return _amount(name, value, _SIZE_BYTES, "b", _SIZE_FORMS)


def is_forever(value: object) -> bool:
    """Whether `value` switches a limit off: None, -1, or a word for it."""
    if isinstance(value, str):
        return value.strip().lower() in _FOREVER_WORDS
    return value is None or (value == -1 and not isinstance(value, bool))


def parse_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """One of several words, in the spelling of `choices`. Case does not count."""
    words = list(choices)
    for word in words:
        if str(value).strip().lower() == word.lower():
            return word
    near = closest(value, words)
    hint = f" (did you mean {near}?)" if near else ""
    raise Refused(f"{name} is {value!r}{hint}: it must be {' or '.join(words)}")


def parse_flag(name: str, value: object) -> bool:
    """True or false, from a bool or its text."""
    flag = _FLAGS.get(str(value).strip().lower())
    if flag is None:
        raise Refused(f"{name} is {value!r}: it must be true or false")
    return flag


def _amount(name: str, value: object, units: dict[str, int], default_unit: str, forms: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip())
        unit = units.get((match[2] or default_unit).lower()) if match else None
        if match and unit is not None:
            from fractions import Fraction  # exact: 0.1d is a whole number of milliseconds

            total = Fraction(match[1].replace(",", "").replace("_", "")) * unit
            if total.denominator == 1:
                return int(total)
    raise Refused(f"{name}={value}: expected {forms}")


def _range(at_least: int | None, at_most: int | None) -> str:
    if at_least is not None and at_most is not None:
        return f" from {at_least:,} to {at_most:,}"
    if at_least is not None:
        return f", {at_least:,} or more"
    return "" if at_most is None else f", {at_most:,} or less"


# Credentials


class Secret:
    """Holds a credential. It never prints, never pickles and never shows in a traceback.

    Only `reveal()` returns it, so a search for that name finds every use.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value. Call this only where the value is passed to the library that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_secret_bytes(self._value), _secret_bytes(other._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled: send its name and read it where it is used")


def _secret_bytes(value: str) -> bytes:
    # The environment may contain bytes that are not text; an encoding error would show them.
    return value.encode("utf-8", "surrogatepass")
