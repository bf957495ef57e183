"""Names of OpenTelemetry's GenAI conventions, all of them here, since they may still change.

Source: https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai, status
"development"). Its attributes for prompts, answers, tools and system instructions are left out on
purpose: what was said is never told.
"""

from shared.telemetry.histograms import Histogram

OPERATION = "gen_ai.operation.name"
"""chat, text_completion or generate_content."""
PROVIDER = "gen_ai.provider.name"
"""Always PROVIDER_NAME."""
REQUEST_MODEL = "gen_ai.request.model"
"""Served name of the model that was asked for."""
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
"""Longest answer."""
RESPONSE_MODEL = "gen_ai.response.model"
"""Served name of the model that answered."""
FINISH_REASONS = "gen_ai.response.finish_reasons"
"""Why the model stopped, one word an answer."""
INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""Tokens of the prompt."""
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
"""Generated tokens."""
ERROR_TYPE = "error.type"
"""Code of the failure; absent when there was none."""

PROVIDER_NAME = "tandem"

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
}

REQUEST_DURATION = Histogram(
    name="gen_ai.server.request.duration",
    unit="s",
    description="Arrival of a request to its last byte.",
    bounds=(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
TIME_TO_FIRST_TOKEN = Histogram(
    name="gen_ai.server.time_to_first_token",
    unit="s",
    description="Arrival of a request to its first token.",
    bounds=(
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
        *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
)
TIME_PER_OUTPUT_TOKEN = Histogram(
    name="gen_ai.server.time_per_output_token",
    unit="s",
    description="Mean time per token after the first, of an answer that ended well.",
    bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
"""The conventions count tokens only in a metric for clients, so that there is none here."""


def operation_of(endpoint: str) -> str:
    """The operation behind a route template or RPC name."""
    return _OPERATIONS.get(endpoint, "generate_content")
