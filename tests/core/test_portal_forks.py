"""A forked child is told of what it must not go on with."""

from __future__ import annotations

import gc
import os
import threading

from headwater.core import portal


class Holder:
    """Something that a child has a copy of."""

    def __init__(self) -> None:
        self.is_told = False
        portal.call_in_child(self._begin_in_child)

    def _begin_in_child(self) -> None:
        self.is_told = True


def test_every_method_is_called_in_the_child_and_none_in_the_parent() -> None:
    holders = [Holder() for _ in range(5)]
    child = os.fork()
    if child == 0:
        os._exit(sum(holder.is_told for holder in holders))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 5
    assert not any(holder.is_told for holder in holders)


def test_holders_of_many_threads_are_all_known_and_those_that_went_are_forgotten() -> None:
    gc.collect()
    before = len(portal._methods)
    kept: list[Holder] = []

    def work() -> None:
        for _ in range(300):
            kept.append(Holder())
            Holder()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(portal._methods) == before + len(kept) == before + 1800
    kept.clear()
    assert len(portal._methods) == before
