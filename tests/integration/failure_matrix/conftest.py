"""Processes to kill."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.role_child import role_children


@pytest.fixture(scope="package")
def children() -> Iterator[Any]:
    """What processes are forked from."""
    with role_children() as context:
        yield context
