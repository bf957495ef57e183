"""GET /props and /load: what this server can do, and how busy it is."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.config import GatewayConfig
from gateway.intake import Intake
from gateway.routes.json_response import json_response
from gateway.schema.completions import MAX_PROMPTS
from gateway.schema.conversation import TEMPLATE_VARIABLES
from shared.config.version import package_version
from shared.wire.sampling import MAX_LOGPROBS, MAX_STOP_STRINGS

PROPS = "/props"
LOAD = "/load"


class PropertyRoutes:
    """What clients adapt themselves to.

    Args:
        intake: the model and its tokenizer.
        config: limits.
        load: requests that run and wait now.
    """

    def __init__(
        self, intake: Intake, *, config: GatewayConfig, load: Callable[[], dict[str, Any]]
    ) -> None:
        self._intake = intake
        self._config = config
        self._load = load

    async def props(self, _request: Request) -> Response:
        """Model, chat template, limits."""
        tokenizer, config = self._intake.tokenizer, self._config
        template = tokenizer.chat_template
        body = {
            "object": "props",
            "model": self._intake.model_id(),
            "version": package_version(),
            "max_model_len": self._intake.max_model_len(),
            "vocab_size": tokenizer.vocab_size,
            "eos_token_ids": list(tokenizer.eos_ids),
            "modalities": {"text": True, "vision": False, "audio": False},
            "chat_template": {
                "available": template is not None,
                "knows_tools": template is not None and template.knows_tools,
                "variables": [
                    name
                    for name in sorted(TEMPLATE_VARIABLES)
                    if template is not None and template.mentions(name)
                ],
            },
            "limits": {
                "max_choices": config.max_choices,
                "max_prompts": MAX_PROMPTS,
                "max_logprobs": MAX_LOGPROBS,
                "max_stop_strings": MAX_STOP_STRINGS,
                "max_body_bytes": config.max_body_bytes,
                "request_timeout_s": config.request_timeout_s,
            },
            "strict_params": config.strict_params,
        }
        return json_response(body)

    async def load(self, _request: Request) -> Response:
        """Requests that run and wait."""
        return json_response(self._load())
