"""GET /openapi.json."""

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.openapi.document import build_document

DOCUMENT = "/openapi.json"


class DocumentRoute:
    """The description of the REST API, made once."""

    def __init__(self) -> None:
        self._body = orjson.dumps(build_document())

    async def document(self, _request: Request) -> Response:
        """The document."""
        return Response(self._body, media_type="application/json")
