"""The loop's settings of the interpreter last as long as the loop, and garbage is collected all the same."""

from __future__ import annotations

import gc
import sys
import weakref

from horae.service.interpreter_settings import answering_soon, collect_all, set_aside


class _Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.me = self


def test_settings_are_as_before_once_the_loop_has_ended() -> None:
    gc.unfreeze()  # what another loop of this process has set aside
    before = (sys.getswitchinterval(), gc.get_threshold())
    with answering_soon():
        assert sys.getswitchinterval() < before[0]
        assert gc.get_freeze_count() > 0
    assert (sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count()) == (*before, 0)


def test_garbage_that_was_set_aside_is_collected_once_a_day() -> None:
    with answering_soon():
        thing = _Cycle()
        gone = weakref.ref(thing)
        set_aside()
        del thing
        gc.collect()
        assert gone() is not None
        collect_all()
        assert gone() is None
