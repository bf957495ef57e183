"""The response object: what was asked, how far the answer is, and what came out."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import ErrorReply
from gateway.job import Finished, GenerationJob
from gateway.schema.replies import Envelope
from gateway.schema.response_tools import FlatAllowedTools, FlatNamedTool, TextConfig
from gateway.schema.responses import ResponsesBody
from shared.types.sampling import FinishReason

_RATE_LIMIT = 429
_FIRST_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseObject:
    """One response at any time of its life.

    Its members are those of OpenAI's Responses API, `system_fingerprint`, and at the end `tandem`.
    """

    envelope: Envelope
    """Its name, time and model."""
    body: ResponsesBody
    """What was asked."""
    job: GenerationJob
    """What was made of it."""

    def running(self) -> dict[str, Any]:
        """Before its end."""
        return self._described(status="in_progress", output=())

    def ended(self, output: Sequence[Mapping[str, Any]], end: Finished) -> dict[str, Any]:
        """After its last token."""
        cut = end.reason is FinishReason.LENGTH
        described = self._described(status="incomplete" if cut else "completed", output=output)
        return described | {
            "completed_at": None if cut else _now(),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": _usage(end),
            "tandem": end.report.extension(),
        }

    def failed(self, output: Sequence[Mapping[str, Any]], reply: ErrorReply) -> dict[str, Any]:
        """After an error; the API has few codes, so ours is the `reason`."""
        error = reply.body["error"]
        told = {
            "code": _failure_code(reply.status),
            "message": error["message"],
            "type": error["type"],
            "param": error["param"],
            "reason": error["code"],
        }
        return self._described(status="failed", output=output) | {"error": told}

    def _described(self, *, status: str, output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        body, envelope, sampling = self.body, self.envelope, self.job.sampling
        return {
            "id": envelope.reply_id,
            "object": "response",
            "created_at": envelope.created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": envelope.model,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": body.effort(), "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "system_fingerprint": envelope.fingerprint,
            "temperature": sampling.temperature,
            "text": {"format": (body.text or TextConfig()).described()},
            "tool_choice": self._choice(),
            "tools": self._tools(),
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _choice(self) -> str | dict[str, Any]:
        choice = self.body.tool_choice
        if isinstance(choice, FlatNamedTool | FlatAllowedTools):
            return choice.described()
        return choice or "auto"

    def _tools(self) -> list[dict[str, Any]]:
        held = self.job.plan.held
        return [
            {
                "type": tool.type,
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.name in held if tool.strict is None else tool.strict,
            }
            for tool in self.body.tools or ()
        ]


def _usage(end: Finished) -> dict[str, Any]:
    """The prompt counts whole, pruned or not; nothing is taken from a cache."""
    return {
        "input_tokens": end.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": end.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }


def _failure_code(status: int) -> str:
    if status == _RATE_LIMIT:
        return "rate_limit_exceeded"
    return "server_error" if status >= _FIRST_SERVER_ERROR else "invalid_prompt"


def _now() -> int:
    return int(datetime.datetime.now(datetime.UTC).timestamp())
