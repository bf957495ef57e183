"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.intake import Intake
from gateway.routes.json_response import json_response
from gateway.schema.replies import unix_now


class ModelRoutes:
    """What is served."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._created = unix_now()

    async def listing(self, _request: Request) -> Response:
        """All models: one."""
        return json_response({"object": "list", "data": [self._model()]})

    async def one(self, request: Request) -> Response:
        """One model by id, which may contain slashes.

        Raises:
            ModelNotFoundError: another id.
        """
        self._intake.check_model(request.path_params["model_id"])
        return json_response(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._intake.model_id(),
            "object": "model",
            "created": self._created,
            "owned_by": "tandem",
            "max_model_len": self._intake.max_model_len(),
        }
