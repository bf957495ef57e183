"""The operations of the REST API, one entry each."""

from dataclasses import dataclass

from pydantic import BaseModel

from gateway.openapi import answers, responses, states
from gateway.routes.admin import DRAIN, LIVE, WORKERS
from gateway.routes.generate import CHAT, COMPLETIONS, RESPONSES
from gateway.routes.properties import LOAD, PROPS
from gateway.routes.tokens import DETOKENIZE, RENDER, TOKENIZE
from gateway.schema.chat import ChatBody
from gateway.schema.completions import CompletionBody
from gateway.schema.responses import ResponsesBody
from gateway.schema.tokens import DetokenizeBody, TokenizeBody

JSON = "application/json"
TEXT = "text/plain"

REFUSALS = (400, 404, 408, 413, 429)
"""What a body can be refused for."""
FAILURES = (500, 502, 503, 504)
"""What can keep a generation from an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One path and method."""

    path: str
    """As in the routing table, without converters."""
    method: str
    """get or post."""
    name: str
    """Identifies it."""
    summary: str
    """What it does."""
    body: type[BaseModel] | None = None
    """What it takes."""
    answer: type[BaseModel] | None = None
    """What it gives; None: text."""
    chunk: type[BaseModel] | None = None
    """What a stream's frames hold, where it can stream."""
    event: type[BaseModel] | None = None
    """What a stream's named events hold, where it can stream and has some."""
    feed: type[BaseModel] | None = None
    """What the frames of an endless stream hold, where there is no other answer."""
    errors: tuple[int, ...] = ()
    """Error statuses beside 401 and 403, which every operation has."""
    same_answer: tuple[int, ...] = ()
    """Error statuses whose body is the answer, not an error."""


OPERATIONS = (
    Operation(
        path=CHAT,
        method="post",
        name="createChatCompletion",
        summary="Answers a conversation; streams when asked to",
        body=ChatBody,
        answer=answers.ChatCompletion,
        chunk=answers.ChatChunk,
        errors=(*REFUSALS, *FAILURES),
    ),
    Operation(
        path=COMPLETIONS,
        method="post",
        name="createCompletion",
        summary="Continues one or several prompts; streams when asked to",
        body=CompletionBody,
        answer=answers.Completion,
        chunk=answers.CompletionChunk,
        errors=(*REFUSALS, *FAILURES),
    ),
    Operation(
        path=RESPONSES,
        method="post",
        name="createResponse",
        summary="Answers text or a conversation without storing anything; streams when asked to",
        body=ResponsesBody,
        answer=responses.ResponseReply,
        event=responses.ResponseEvent,
        errors=(*REFUSALS, *FAILURES),
    ),
    Operation(
        path=RENDER,
        method="post",
        name="renderChatPrompt",
        summary="Shows the prompt that a chat request would become, without answering it",
        body=ChatBody,
        answer=answers.RenderedPrompt,
        errors=REFUSALS,
    ),
    Operation(
        path=TOKENIZE,
        method="post",
        name="tokenize",
        summary="Token ids of a text or of a conversation",
        body=TokenizeBody,
        answer=answers.Tokenized,
        errors=REFUSALS,
    ),
    Operation(
        path=DETOKENIZE,
        method="post",
        name="detokenize",
        summary="Text of token ids, special tokens included",
        body=DetokenizeBody,
        answer=answers.Detokenized,
        errors=REFUSALS,
    ),
    Operation(
        path="/v1/models",
        method="get",
        name="listModels",
        summary="The served models",
        answer=states.ModelList,
    ),
    Operation(
        path="/v1/models/{model_id}",
        method="get",
        name="getModel",
        summary="One served model; its id may contain slashes",
        answer=states.Model,
        errors=(404,),
    ),
    Operation(
        path=PROPS,
        method="get",
        name="getProps",
        summary="Model, chat template and limits",
        answer=states.Props,
    ),
    Operation(
        path=LOAD, method="get", name="getLoad", summary="How busy it is", answer=states.Load
    ),
    Operation(
        path="/health/live",
        method="get",
        name="getLiveness",
        summary="The process answers",
        answer=states.Alive,
    ),
    *(
        Operation(
            path=path,
            method="get",
            name=name,
            summary="Whether a request could be served now",
            answer=states.Ready,
            same_answer=(503,),
        )
        for path, name in (
            ("/health/ready", "getReadiness"),
            ("/health", "getHealth"),
            ("/healthz", "getHealthz"),
        )
    ),
    Operation(
        path="/metrics",
        method="get",
        name="getMetrics",
        summary="Prometheus exposition",
    ),
    Operation(
        path="/openapi.json",
        method="get",
        name="getDocument",
        summary="This document",
        answer=states.Document,
    ),
    Operation(
        path="/version",
        method="get",
        name="getVersion",
        summary="Versions",
        answer=states.Version,
    ),
    Operation(
        path=WORKERS,
        method="get",
        name="listWorkers",
        summary="Every known worker; for operators",
        answer=states.WorkerList,
    ),
    Operation(
        path=DRAIN,
        method="post",
        name="drainWorker",
        summary="Asks a worker to finish what it has and end; for operators",
        answer=states.DrainBegun,
        errors=(404, 415, 503),
    ),
    Operation(
        path=LIVE,
        method="get",
        name="watchGateway",
        summary="The state of the gateway once a second, until the caller leaves; for operators",
        feed=states.Live,
        errors=(429,),
    ),
)
"""All of them, in the order of the document."""
