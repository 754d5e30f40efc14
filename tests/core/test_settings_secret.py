"""A secret is seen only by whoever asks for it by name."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback
from collections.abc import Callable
from pprint import pformat

import msgspec
import pytest
from rich.pretty import pretty_repr

from headwater.core.settings import Secret

VALUE = "hunter2-hunter2"


def test_reveal_returns_it() -> None:
    assert Secret(VALUE).reveal() == VALUE


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        ascii,
        format,
        pformat,
        pretty_repr,
        lambda secret: f"{secret}",
        lambda secret: f"{secret!r}",
        lambda secret: f"{secret:>40}",
        lambda secret: "%s %r" % (secret, secret),  # noqa: UP031
        lambda secret: repr({"key": [secret]}),
        lambda secret: str(ValueError(secret)),
        lambda secret: repr(ValueError(secret)),
    ],
)
def test_it_never_prints(show: Callable[[Secret], str]) -> None:
    shown = show(Secret(VALUE))

    assert VALUE not in shown
    assert "***" in shown


def test_a_width_in_a_format_is_kept() -> None:
    assert f"{Secret(VALUE):>6}" == "   ***"


def test_it_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("with %s and %r", Secret(VALUE), Secret(VALUE))

    assert caplog.messages == ["with *** and Secret(***)"]


def test_it_is_not_in_a_traceback_with_the_values_of_variables() -> None:
    def connect(secret: Secret) -> None:
        raise ValueError(secret)

    with pytest.raises(ValueError, match=r"\*\*\*") as raised:
        connect(Secret(VALUE))
    report = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    shown = "".join(report.format())

    assert "secret = Secret(***)" in shown
    assert VALUE not in shown


@pytest.mark.parametrize(
    "carry",
    [
        *(lambda secret, p=p: pickle.dumps(secret, p) for p in range(pickle.HIGHEST_PROTOCOL + 1)),
        lambda secret: pickle.dumps({"key": [secret]}),
        copy.copy,
        copy.deepcopy,
        json.dumps,
        msgspec.json.encode,
        msgspec.msgpack.encode,
        msgspec.to_builtins,
    ],
)
def test_it_does_not_travel(carry: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError) as raised:
        carry(Secret(VALUE))

    assert VALUE not in str(raised.value)


def test_it_has_no_dictionary_to_look_into() -> None:
    with pytest.raises(TypeError):
        vars(Secret(VALUE))


def test_it_equals_the_same_secret_and_nothing_else() -> None:
    assert Secret(VALUE) == Secret(VALUE)
    assert Secret(VALUE) != Secret(VALUE + "x")
    assert Secret(VALUE) != VALUE
    assert Secret("pässword") == Secret("pässword")


def test_bytes_of_the_environment_that_are_not_text_can_be_compared() -> None:
    assert Secret("\udcff") == Secret("\udcff")
    assert Secret("\udcff") != Secret("\udcfe")


def test_it_is_no_key_of_a_dictionary() -> None:
    with pytest.raises(TypeError):
        hash(Secret(VALUE))
