"""Schemas into grammars that have been compiled once here, before any worker hears of them."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.structured.schema_check import LIBRARY_OPTIONS, check_schema
from shared.errors import InvalidRequestError
from shared.grammar.compiler import GrammarCompiler

ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""The schema of `json_object`."""

_STYLE = {
    LIBRARY_OPTIONS: {
        # One way to write a value: a model that may add white space can do so for ever.
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        # Without \u nobody can write half of a surrogate pair, which strict parsers refuse.
        "json_allowed_escapes": 'nrbtf\\"',
    }
}


def styled(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with our way of writing JSON: `json.dumps` with its default separators."""
    return {**schema, **_STYLE}


@dataclass(frozen=True, slots=True)
class Enforcer:
    """Makes grammars and proves that the workers will take them.

    Args:
        grammars: compiles with the limits that workers have.
    """

    grammars: GrammarCompiler

    async def json_schema(self, schema: dict[str, Any], *, param: str) -> str:
        """The grammar of one JSON value that `schema` describes.

        Raises:
            InvalidRequestError: it is malformed, unsupported, hostile or unsatisfiable; `param`
                and the message say where and which keyword.
        """
        check_schema(schema, param=param)
        grammar = json.dumps({"grammars": [{"json_schema": styled(schema)}]})
        return await self.proven(grammar, param=param)

    async def proven(self, grammar: str, *, param: str) -> str:
        """`grammar`, after it was compiled.

        Raises:
            InvalidRequestError: it cannot be.
        """
        try:
            await self.grammars.compile(grammar)
        except InvalidRequestError as error:
            raise InvalidRequestError(error.message, code=error.error_code, param=param) from error
        return grammar
