"""Turns checked requests into jobs: model name, chat template, token ids, limits, deadline."""

import asyncio
import hashlib
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.answer_plan import AnswerPlan
from gateway.conversation import Conversation
from gateway.job import GenerationJob
from gateway.planner import AnswerPlanner
from gateway.prompt_parts import AskedParts, RenderedChat, refuse_parts, resolve_parts
from gateway.schema.completions import CompletionBody
from gateway.schema.generation import GenerationBody
from gateway.schema.translate import (
    check_token_id,
    fit_context,
    options_of,
    parts_of,
    sampling_of,
    stop_of,
)
from gateway.workers import Workers
from shared.config.version import package_version
from shared.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError
from shared.tokenizer.chat_template import ChatTemplate
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.options import RequestOptions
from shared.types.token_ids import compact_ids
from shared.wire.token_ids import largest_id

_UNKNOWN_CONTEXT = 2048

_AT_ONCE_CHARS = 4_096
"""Rendering and tokenizing so much text takes under a millisecond. More is done in a thread, where
it stalls no other stream, but waits for the interpreter's lock, often for longer than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a request came from."""

    request_id: str
    """Its name."""
    endpoint: str
    """Route template or RPC name."""
    arrived: float
    """Arrival, on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What the model is called."""

    name: str
    """Name set by the operator; empty takes the workers'."""
    alias: str
    """Name of the model in the catalog; understood as well, and used while no worker is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """A tokenized prompt and what was asked about it."""

    ids: Sequence[int]
    """Its tokens."""
    options: RequestOptions
    """Overrides of the model profile, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """How much one request may ask for."""

    timeout_s: float
    """Longest life, in seconds."""
    max_choices: int
    """Answers to one prompt."""


class Intake:
    """The way in.

    Args:
        tokenizer: of the served model.
        workers: say what they serve.
        naming: names of the model.
        limits: how much one request may ask for.
        planner: settles what answers must be.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        workers: Workers,
        naming: Naming,
        limits: IntakeLimits,
        planner: AnswerPlanner,
    ) -> None:
        self.tokenizer = tokenizer
        self._workers = workers
        self._naming = naming
        self._limits = limits
        self.planner = planner

    def model_id(self) -> str:
        """The name that answers carry."""
        served = self._workers.served()
        return self._naming.name or (served.name if served is not None else self._naming.alias)

    def max_model_len(self) -> int:
        """Longest context, in tokens."""
        served = self._workers.served()
        limits = [served.max_model_len] if served is not None and served.max_model_len else []
        if self.tokenizer.max_length:
            limits.append(self.tokenizer.max_length)
        return min(limits, default=_UNKNOWN_CONTEXT)

    def check_model(self, name: str | None) -> str:
        """The model's id, when `name` means it; an absent name takes the only model.

        Raises:
            ModelNotFoundError: another model was asked for.
        """
        model = self.model_id()
        if not name or name in {model, self._naming.alias}:
            return model
        if not self._naming.name and self._workers.served() is None:
            # No worker has said what it serves: that is the answer, not that the model is unknown.
            return name
        raise ModelNotFoundError(
            f"the model {name[:100]!r} is not served here; served models: {model}", param="model"
        )

    def fingerprint(self, options: RequestOptions) -> str:
        """Changes whenever the answer to the same seed may change."""
        served = self._workers.served()
        serving = (served.model_hash, served.methods) if served is not None else ()
        text = repr((package_version(), serving, replace(options, trace=False, replay=False)))
        return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    async def conversation_job(self, asked: Conversation, origin: Origin) -> GenerationJob:
        """The job of a conversation.

        Raises:
            InvalidRequestError: unknown model, no chat template, or it does not fit.
        """
        body, param = asked.body, asked.param
        plan = await self._plan(asked)
        prompt = await self.encode_chat(
            asked.turns(),
            body.template_variables() | plan.variables(),
            options=options_of(body.tandem),
            asked=parts_of(body.tandem),
            param=param,
        )
        return replace(self._job(body, prompt, origin, param=param), plan=plan)

    async def render_conversation(self, asked: Conversation) -> str:
        """The prompt of a conversation, as `conversation_job` would make it.

        Raises:
            InvalidRequestError: unknown model, no chat template, or far too much text.
        """
        plan = await self._plan(asked)
        variables = asked.body.template_variables() | plan.variables()
        return await self.render(asked.turns(), variables, param=asked.param)

    async def _plan(self, asked: Conversation) -> AnswerPlan:
        self.check_model(asked.body.model)
        self.refuse_too_many(asked.length, param=asked.param)
        return await self.planner.plan(asked.asked)

    async def completion_jobs(self, body: CompletionBody, origin: Origin) -> list[GenerationJob]:
        """One job a prompt.

        Raises:
            InvalidRequestError: unknown model, ids outside the vocabulary, or it does not fit.
        """
        self.check_model(body.model)
        options = options_of(body.tandem)
        refuse_parts(parts_of(body.tandem))
        jobs = []
        for prompt in body.prompt:
            ids: Sequence[int]
            if isinstance(prompt, str):
                ids = await self.encode_text(prompt, param="prompt")
            else:
                ids = self.checked_ids(prompt, param="prompt")
            given = PromptInput(ids=ids, options=options)
            jobs.append(self._job(body, given, origin, param="prompt"))
        return jobs

    async def encode_text(self, text: str, *, param: str) -> list[int]:
        """Token ids of plain text, with the tokenizer's own opening token.

        Raises:
            ContextLengthError: the text is far too long to be worth encoding.
        """
        self.refuse_hopeless(text, param=param)
        return await self.encode(text, add_special_tokens=True)

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        options: RequestOptions,
        asked: AskedParts,
        param: str = "messages",
    ) -> PromptInput:
        """A rendered conversation, and `options` with the parts of it that were asked for.

        Raises:
            InvalidRequestError: no chat template, a refusal by it, far too much text, or no such
                part.
        """
        template = self._template()
        text = await self.render(messages, variables, param=param)
        if not asked.anything:
            ids = await self.encode(text, add_special_tokens=False)
            return PromptInput(ids=ids, options=options)
        chat = RenderedChat(template=template, messages=messages, variables=variables, text=text)
        return await asyncio.to_thread(self._with_parts, chat, options, asked)

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
        param: str = "messages",
    ) -> str:
        """A conversation as the chat template prints it.

        Raises:
            InvalidRequestError: no chat template, a refusal by it, or far too much text.
        """
        render = partial(
            self._template().render,
            messages,
            variables=variables,
            add_generation_prompt=add_generation_prompt,
        )
        short = _is_short(messages) and not variables
        text = render() if short else await asyncio.to_thread(render)
        self.refuse_hopeless(text, param=param)
        return text

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text that was looked at, as `refuse_hopeless` does."""
        encode = partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        if len(text) <= _AT_ONCE_CHARS:
            return encode()
        return await asyncio.to_thread(encode)

    def _template(self) -> ChatTemplate:
        template = self.tokenizer.chat_template
        if template is None:
            raise InvalidRequestError(
                "this model has no chat template: it is a base model, or its folder lacks the "
                "template; use /v1/completions, or add chat_template.jinja to the folder",
                code="chat_template_missing",
            )
        return template

    def _with_parts(
        self, chat: RenderedChat, options: RequestOptions, asked: AskedParts
    ) -> PromptInput:
        ids, offsets = self.tokenizer.encode_with_offsets(chat.text, add_special_tokens=False)
        options = resolve_parts(chat, offsets=offsets, options=options, asked=asked)
        return PromptInput(ids=ids, options=options)

    def refuse_hopeless(self, text: str, *, param: str) -> None:
        """Looks at a text before it is tokenized.

        Raises:
            ContextLengthError: it cannot fit, however it is tokenized.
        """
        limit, tokens = self.max_model_len(), self.tokenizer.fewest_tokens(text)
        if tokens > limit:
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens, but the {param} has "
                f"{len(text)} characters, which are at least {tokens} tokens. Shorten the {param}.",
                param=param,
            )

    def refuse_too_many(self, turns: int, *, param: str = "messages") -> None:
        """Looks at a conversation before any work is done for its single messages.

        Raises:
            ContextLengthError: even with a token each they cannot fit.
        """
        limit = self.max_model_len()
        if turns > limit:
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens, but the {param} has "
                f"{turns} turns, which are at least as many tokens. Shorten the {param}.",
                param=param,
            )

    def checked_ids(self, ids: Sequence[int], *, param: str) -> "array[int]":
        """`ids`, at least one and none negative, as a prompt.

        Raises:
            InvalidRequestError: one is outside the vocabulary.
        """
        check_token_id(largest_id(ids), vocab_size=self.tokenizer.vocab_size, param=param)
        return compact_ids(ids)

    def checked_choices(self, asked: int, *, param: str) -> int:
        """How many answers to a prompt, when so many may be asked for.

        Raises:
            InvalidRequestError: it is more than the operator allows.
        """
        if asked > self._limits.max_choices:
            raise InvalidRequestError(
                f"{param} is {asked}, but this server gives at most {self._limits.max_choices} "
                "answers to a prompt (max_choices); ask for fewer, or send several requests",
                param=param,
            )
        return asked

    def deadline(self, arrived: float) -> float:
        """End of a request's time, on the monotonic clock."""
        return arrived + self._limits.timeout_s

    def _job(
        self, body: GenerationBody, prompt: PromptInput, origin: Origin, *, param: str
    ) -> GenerationJob:
        ids = prompt.ids
        if not ids:
            raise InvalidRequestError(f"the {param} gave no tokens; send some text", param=param)
        vocab = self.tokenizer.vocab_size
        max_tokens = fit_context(
            prompt_tokens=len(ids),
            asked=body.answer_limit(),
            limit=self.max_model_len(),
            param=param,
        )
        return GenerationJob(
            request_id=origin.request_id,
            endpoint=origin.endpoint,
            model=self.model_id(),
            prompt_ids=ids,
            sampling=sampling_of(body, vocab_size=vocab),
            stop=stop_of(
                body, max_tokens=max_tokens, eos_ids=self.tokenizer.eos_ids, vocab_size=vocab
            ),
            branches=self.checked_choices(body.branches(), param="n"),
            options=prompt.options,
            include_stop=bool(body.include_stop_str_in_output),
            arrived=origin.arrived,
            deadline=self.deadline(origin.arrived),
        )


def new_origin(request_id: str, endpoint: str) -> Origin:
    """The origin of a request that arrives now."""
    return Origin(request_id=request_id, endpoint=endpoint, arrived=time.monotonic())


def _is_short(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation is plain text and little of it."""
    room = _AT_ONCE_CHARS
    for message in messages:
        for value in message.values():
            if not isinstance(value, str):
                return False
            room -= len(value) + 1
        if room < 0:
            return False
    return True
