"""Makes Spark show our errors by their message, without a traceback before it.

Spark's workers send an error as a traceback. Its last line is the message that a user needs, after
twenty lines of Spark's code and ours. Spark omits the traceback if SPARK_HIDE_TRACEBACK is set in
the worker's environment when it sends the error, so it is set while one of Headwater's errors is
raised. A worker of Spark ends with the first error that it sends, so no other error loses its
traceback.

Code that runs in the user's own process, such as the function of `foreachBatch` on a classic
session, reaches Spark as a traceback in any case. A traceback begins with the cause of the error,
so the message is made the cause: it comes first, and the traceback follows.

A `Bug` of Headwater, and errors of other code, keep their traceback.
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
    """Decorate what Spark calls in a worker: its errors are shown without a traceback."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def rows(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _hide_traceback():
                yield from method(*args, **kwargs)

        return rows

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with _hide_traceback():
            return method(*args, **kwargs)

    return call


def message_first(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate what Spark calls in the driver: its errors begin with their message."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with _hide_traceback():
                return function(*args, **kwargs)
        except HeadwaterError as error:
            if isinstance(error, Bug) or _is_spark_worker():
                raise
            if error.__cause__ is not None:
                error.add_note(f"caused by {error.__cause__!r}")
            # A copy that was never raised has no traceback, so only its message is printed.
            raise error from type(error).__new__(type(error), *error.args)

    return call


@contextmanager
def _hide_traceback() -> Iterator[None]:
    try:
        yield
    except HeadwaterError as error:
        if not isinstance(error, Bug) and _is_spark_worker():
            os.environ[HIDE] = "1"
        raise


def _is_spark_worker() -> bool:
    """Whether the process is a worker of Spark, which ends with the error."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started is not None and str(started.name).startswith("pyspark.")
