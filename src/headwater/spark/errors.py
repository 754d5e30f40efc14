"""Errors as Spark shows them: the sentence that says what to do, and no traceback before it.

Spark's workers send an error as a traceback. Its last line is what a user needs, and it comes after
twenty lines of Spark's and of ours. Spark leaves the traceback out where SPARK_HIDE_TRACEBACK is
set in the worker's environment, and looks when it sends the error. So it is set while an error of
Headwater's own is on its way there. Every worker of Spark's ends with the first error that it
sends: no other error loses its traceback by that.

What runs in the user's own process, as the function of `foreachBatch` does on a classic session,
reaches Spark as the text of a traceback in any case. A traceback begins with the cause of its
error: there the sentence is put first, and the traceback follows.

An error that says that Headwater itself is wrong (`Bug`), or that is none of its own, keeps its
traceback.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from headwater.core.errors import Bug, HeadwaterError

P = ParamSpec("P")
T = TypeVar("T")

HIDE: Final = "SPARK_HIDE_TRACEBACK"


def plain_errors(method: Callable[P, T]) -> Callable[P, T]:
    """What Spark calls in a worker: its errors are shown by their sentence alone."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def rows(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _sentence_alone():
                yield from method(*args, **kwargs)

        return rows

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with _sentence_alone():
            return method(*args, **kwargs)

    return call


def sentence_first(function: Callable[P, T]) -> Callable[P, T]:
    """What Spark calls back in the driver: its errors begin with their sentence."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with _sentence_alone():
                return function(*args, **kwargs)
        except HeadwaterError as error:
            if isinstance(error, Bug) or _is_spark_worker():
                raise
            if error.__cause__ is not None:
                error.add_note(f"caused by {error.__cause__!r}")
            # A copy that was never raised has no traceback; what is printed of it is one line.
            raise error from type(error).__new__(type(error), *error.args)

    return call


@contextmanager
def _sentence_alone() -> Iterator[None]:
    try:
        yield
    except HeadwaterError as error:
        if not isinstance(error, Bug) and _is_spark_worker():
            os.environ[HIDE] = "1"
        raise


def _is_spark_worker() -> bool:
    """Whether the process is Spark's own, which ends with the error, and not a user's."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started is not None and str(started.name).startswith("pyspark.")
