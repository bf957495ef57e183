"""What a serving process asks of its interpreter."""

import gc
import sys

from shared.config.interpreter import SWITCH_S, keep_objects, switch_threads_soon


def test_what_was_loaded_is_kept_from_the_collector() -> None:
    try:
        keep_objects()
        assert gc.get_freeze_count() > 0
        before = gc.get_freeze_count()
        young: list[list[int]] = [[] for _ in range(100)]
        gc.collect()
        assert gc.get_freeze_count() == before, "later objects are collected as ever"
        assert len(young) == 100
    finally:
        gc.unfreeze()


def test_threads_change_places_soon() -> None:
    given = sys.getswitchinterval()
    try:
        switch_threads_soon()
        assert abs(sys.getswitchinterval() - SWITCH_S) < 1e-6
    finally:
        sys.setswitchinterval(given)
