"""The browser that all tests of a module share."""

from tests.support.browser import browser  # noqa: F401  a fixture
