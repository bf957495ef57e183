import pytest

from shared.errors import ConfigError
from shared.registry.registry import Registry


def test_members_by_name():
    registry: Registry[type] = Registry("ranker")
    registry.register("claa", int)
    registry.register("full", str)
    assert registry.get("claa") is int
    assert registry.names() == ("claa", "full")


def test_unknown_name_lists_the_known_ones():
    registry: Registry[type] = Registry("ranker")
    registry.register("claa", int)
    with pytest.raises(ConfigError, match=r"ranker 'clas'.*did you mean 'claa'.*; known: claa"):
        registry.get("clas")


def test_internal_members_are_not_offered():
    registry: Registry[type] = Registry("ranker")
    registry.register("claa", int)
    registry.register("inner", str, internal=True)
    assert registry.get("inner") is str
    assert registry.names() == ("claa", "inner")
    with pytest.raises(ConfigError, match=r"^unknown ranker 'inne'; known: claa$"):
        registry.get("inne")


def test_a_name_is_taken_once():
    registry: Registry[type] = Registry("ranker")
    registry.register("claa", int)
    with pytest.raises(AssertionError, match="twice"):
        registry.register("claa", str)
