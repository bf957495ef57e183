"""What the server says about itself, as schemas."""

from typing import Any, Literal

from pydantic import BaseModel


class Model(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"]
    data: list[Model]


class Alive(BaseModel):
    """The process answers."""

    status: str


class Ready(BaseModel):
    """Whether a request could be served now; operators also see who the workers are."""

    status: Literal["ready", "not_ready"]
    phase: str
    progress: float
    detail: str


class Version(BaseModel):
    """Versions of the package and of the gRPC API."""

    version: str
    api: str


class TemplateState(BaseModel):
    """What the chat template takes."""

    available: bool
    knows_tools: bool
    variables: list[str]


class ServerLimits(BaseModel):
    """Bounds of one request."""

    max_choices: int
    max_prompts: int
    max_logprobs: int
    max_stop_strings: int
    max_body_bytes: int
    request_timeout_s: float


class Props(BaseModel):
    """What this server can do."""

    object: Literal["props"]
    model: str
    version: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: list[int]
    modalities: dict[str, bool]
    chat_template: TemplateState
    limits: ServerLimits
    strict_params: bool


class Load(BaseModel):
    """How busy it is."""

    server_load: int
    """Requests that run or wait."""
    queued_requests: int
    queued_prompt_tokens: int
    queue_limit_tokens: int
    draining: bool


class Document(BaseModel):
    """The description of the REST API."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


class Live(BaseModel):
    """The state of the gateway at one moment; see the page at / for what it shows of it."""

    ready: bool
    phase: str
    detail: str
    requests_in_flight: int
    queue: dict[str, int]
    discovery: Literal["static", "redis"]
    registry: Literal["ok", "degraded"]
    local_prefill: dict[str, Any]
    """Decode workers that read prompts themselves, and how often for which reason."""
    replays: dict[str, Any]
    """Whether answers that lose their decode worker may go on, and what came of such answers."""
    workers: list[dict[str, Any]]
    traffic: dict[str, Any]
    """Latencies, rate and requests of the last minute."""
    flows: list[dict[str, Any]]
    """KV that moved between each pair of workers."""


class WorkerList(BaseModel):
    """Every known worker."""

    workers: list[dict[str, Any]]


class DrainBegun(BaseModel):
    """A worker takes no more work."""

    worker_id: str
    draining: Literal[True]
    running: int
    """Requests that it still finishes."""
