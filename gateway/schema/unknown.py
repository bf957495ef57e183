"""Fields nobody knows: accepted, named in a header, with a hint when they look like a typo."""

import re
from collections.abc import Iterable
from itertools import islice

from gateway.schema.generation import ACCEPTED_WITHOUT_EFFECT, Body
from shared.errors import InvalidRequestError

IGNORED_HEADER = "x-ignored-params"
HINT_HEADER = "x-param-hint"

_MAX_NAMES = 16
_MAX_DISTANCE = 2
_MIN_LENGTH = 4
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.\-]")


def check_unknown(body: Body, *, strict: bool) -> dict[str, str]:
    """Response headers that name the ignored fields; empty when all are known.

    Raises:
        InvalidRequestError: `strict` and there is one.
    """
    found = list(islice(_unknown(body), _MAX_NAMES))
    if not found:
        return {}
    if strict:
        name, near = found[0][0], _nearest(*found[0])
        hint = f"did you mean {near}?" if near else "remove it"
        raise InvalidRequestError(f"unknown field {name}; {hint}", param=name)
    hints = [f"{name} -> {near}" for name, known in found if (near := _nearest(name, known))]
    headers = {IGNORED_HEADER: ", ".join(_clean(name) for name, _ in found)}
    if hints:
        headers[HINT_HEADER] = ", ".join(_clean_hint(hint) for hint in hints)
    return headers


def _unknown(body: Body) -> Iterable[tuple[str, Iterable[str]]]:
    known = set(type(body).model_fields) | ACCEPTED_WITHOUT_EFFECT
    for name in body.model_extra or {}:
        if name not in ACCEPTED_WITHOUT_EFFECT:
            yield name, known
    for parent, inner in body.objects().items():
        if inner is None:
            continue
        fields = [f"{parent}.{field}" for field in type(inner).model_fields]
        for name in inner.model_extra or {}:
            yield f"{parent}.{name}", fields
    for name in body.without_effect():
        yield name, ()


def _nearest(name: str, known: Iterable[str]) -> str | None:
    if len(name) < _MIN_LENGTH:
        return None
    best = min(known, key=lambda other: (_distance(name, other), other), default=None)
    return best if best is not None and _distance(name, best) <= _MAX_DISTANCE else None


def _distance(a: str, b: str) -> int:
    """Edits between two names, a swap of neighbours counting once; stops caring above the limit."""
    if abs(len(a) - len(b)) > _MAX_DISTANCE:
        return _MAX_DISTANCE + 1
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def _clean(name: str) -> str:
    return _UNPRINTABLE.sub("?", name)[:64]


def _clean_hint(hint: str) -> str:
    name, _, near = hint.partition(" -> ")
    return f"{_clean(name)} -> {near}"
