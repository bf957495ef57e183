"""JSON bodies without NaN, whatever the values are."""

from collections.abc import Mapping

import orjson
from starlette.responses import Response


def json_response(
    body: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response; numbers that JSON lacks become null."""
    return Response(
        orjson.dumps(body),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/json",
    )
