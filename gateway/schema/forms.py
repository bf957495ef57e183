"""Unions whose members are told apart by one look: an error is about the one that was meant.

A tag stands in the place of an error; names that begin with `FORM` are left out of dotted paths.
"""

from pydantic import Tag, ValidationError

FORM = "form:"


def form(name: str) -> Tag:
    """The tag of a member."""
    return Tag(FORM + name)


def type_of(value: object) -> str | None:
    """The tag of the member that `type` names; None when it names none."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return FORM + kind if isinstance(kind, str) else None


def dotted(place: tuple[int | str, ...]) -> str:
    """The place of an error as clients know it."""
    return ".".join(str(part) for part in place if not str(part).startswith(FORM))


def first_problem(error: ValidationError) -> tuple[str, str, str]:
    """Dotted place, kind and wording of the first error."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    text = first["msg"].removeprefix("Value error, ")
    return dotted(first["loc"]), first["type"], f"{text[0].lower()}{text[1:]}"
