"""POST /tokenize, /detokenize and /v1/chat/completions/render: what a prompt becomes."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gateway.conversation import chat_conversation
from gateway.intake import Intake
from gateway.routes.body import parsed, read_body
from gateway.routes.json_response import json_response
from gateway.routes.names import REQUEST_ID_HEADER, request_id_from
from gateway.schema.chat import ChatBody
from gateway.schema.conversation import allowed_variables
from gateway.schema.generation import Body
from gateway.schema.parse import parse_body, parse_object, validated
from gateway.schema.tokens import DetokenizeBody, TokenizeBody
from gateway.schema.translate import check_token_id
from gateway.schema.unknown import check_unknown

TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
RENDER = "/v1/chat/completions/render"

M = TypeVar("M", bound=Body)


class TokenRoutes:
    """Texts to tokens and back, and conversations to prompts, without generating.

    Args:
        intake: the tokenizer and its limits.
        max_body_bytes: largest body.
        strict_params: unknown fields are refused.
    """

    def __init__(self, intake: Intake, *, max_body_bytes: int, strict_params: bool) -> None:
        self._intake = intake
        self._max_body_bytes = max_body_bytes
        self._strict = strict_params

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or of a conversation.

        Raises:
            InvalidRequestError: neither or both were sent, or it is far too long.
            ModelNotFoundError: another model was asked for.
        """
        body = await self._body(request, TokenizeBody)
        self._intake.check_model(body.model)
        ids = await self._ids(body)
        strings = None
        if body.return_token_strs:
            strings = [self._string(token_id) for token_id in ids]
        answer = {
            "count": len(ids),
            "max_model_len": self._intake.max_model_len(),
            "tokens": ids,
            "token_strs": strings,
        }
        return self._answer(request, answer, check_unknown(body, strict=self._strict))

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, special tokens included.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
            ModelNotFoundError: another model was asked for.
        """
        body = await self._body(request, DetokenizeBody)
        self._intake.check_model(body.model)
        tokenizer = self._intake.tokenizer
        check_token_id(max(body.tokens, default=0), vocab_size=tokenizer.vocab_size, param="tokens")
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
        headers = check_unknown(body, strict=self._strict)
        return self._answer(request, {"prompt": text}, headers)

    async def render(self, request: Request) -> Response:
        """The prompt that a chat completion request would become.

        Raises:
            InvalidRequestError: what the request itself would be refused for, but for its length
                beside the answer's.
            ModelNotFoundError: another model was asked for.
        """
        raw = await read_body(request, limit=self._max_body_bytes)
        body = await parsed(raw, partial(parse_body, cls=ChatBody))
        headers = check_unknown(body, strict=self._strict)
        model = self._intake.check_model(body.model)
        text = await self._intake.render_conversation(chat_conversation(body))
        ids = await self._encode(text, special=False)
        answer = {
            "object": "chat.completion.prompt",
            "model": model,
            "prompt": text,
            "prompt_token_ids": ids,
            "prompt_tokens": len(ids),
            "max_model_len": self._intake.max_model_len(),
        }
        return self._answer(request, answer, headers)

    async def _ids(self, body: TokenizeBody) -> list[int]:
        if body.messages is None:
            assert body.prompt is not None, "checked by the body"
            self._intake.refuse_hopeless(body.prompt, param="prompt")
            return await self._encode(body.prompt, special=body.add_special_tokens is not False)
        self._intake.refuse_too_many(len(body.messages))
        text = await self._intake.render(
            [message.for_template() for message in body.messages],
            allowed_variables(body.chat_template_kwargs or {}),
            add_generation_prompt=body.add_generation_prompt is not False,
        )
        return await self._encode(text, special=bool(body.add_special_tokens))

    async def _encode(self, text: str, *, special: bool) -> list[int]:
        return await asyncio.to_thread(
            self._intake.tokenizer.encode, text, add_special_tokens=special
        )

    def _string(self, token_id: int) -> str:
        return self._intake.tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")

    async def _body(self, request: Request, cls: type[M]) -> M:
        raw = await read_body(request, limit=self._max_body_bytes)
        return await parsed(raw, lambda data: validated(parse_object(data), cls))

    def _answer(
        self, request: Request, answer: dict[str, Any], headers: Mapping[str, str]
    ) -> Response:
        request_id = request_id_from(request.headers.get(REQUEST_ID_HEADER))
        return json_response(answer, headers={**headers, REQUEST_ID_HEADER: request_id})
