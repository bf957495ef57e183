"""Looks at a client's JSON schema before a compiler sees it: size, depth, and what explodes."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from shared.errors import InvalidRequestError
from shared.grammar.compiler import INVALID

MAX_SCHEMA_BYTES = 128 * 1024
"""Longest schema as JSON text."""

MAX_SCHEMA_DEPTH = 64
"""Deepest nesting of objects and lists in a schema; a level of the answer takes two."""

MAX_SCHEMA_OBJECTS = 1000
"""Objects in a schema: about as many as it has parts."""

MAX_MULTIPLE_OF = 10_000
"""Largest product of a schema's `multipleOf` values, without their decimal points: the states of
the automaton that counts remainders."""

LIBRARY_OPTIONS = "x-guidance"
"""Key by which the grammar library takes options from a schema; never a client's."""


def check_schema(schema: dict[str, Any], *, param: str) -> None:
    """Refuses a schema that would cost too much.

    Raises:
        InvalidRequestError: it is too large or too deep, or a keyword asks for too much.
    """
    if LIBRARY_OPTIONS in schema:
        raise _refused(f"the keyword {LIBRARY_OPTIONS} is not part of JSON Schema", param)
    objects, product = 0, Decimal(1)
    if too_deep(schema):
        raise _refused(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels", param)
    for node, _ in _nodes(schema):
        if isinstance(node, dict):
            objects += 1
            product *= _steps(node.get("multipleOf"))
    if objects > MAX_SCHEMA_OBJECTS:
        raise _refused(f"it holds {objects} objects, more than {MAX_SCHEMA_OBJECTS}", param)
    if product > MAX_MULTIPLE_OF:
        raise _refused(
            f"its multipleOf values are too large or too precise (product above {MAX_MULTIPLE_OF})",
            param,
        )
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise _refused(f"it has {size} bytes, more than {MAX_SCHEMA_BYTES}", param)


def too_deep(schema: object) -> bool:
    """Whether an object or a list is nested deeper than MAX_SCHEMA_DEPTH."""
    return any(depth > MAX_SCHEMA_DEPTH for _, depth in _nodes(schema))


def _nodes(schema: object) -> Iterator[tuple[object, int]]:
    """All objects and lists with their depth; without recursion, so that no depth can hurt."""
    waiting: list[tuple[object, int]] = [(schema, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        inner = node.values() if isinstance(node, dict) else node
        assert not isinstance(inner, str | int | float | None)
        waiting.extend((v, depth + 1) for v in inner if isinstance(v, dict | list))  # type: ignore[attr-defined]


def _steps(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value:
        return Decimal(1)
    number = Decimal(repr(value)).normalize().as_tuple()
    exponent = number.exponent
    assert isinstance(exponent, int), "JSON has finite numbers only"
    digits = int("".join(map(str, number.digits)))
    return max(Decimal(1), Decimal(digits).scaleb(max(0, exponent)))


def _refused(why: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the schema cannot be enforced: {why}; simplify it", code=INVALID, param=param
    )
