"""What a caller may ask for beside the prompt, and the request that it becomes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar

from gateway.sdk.prompt import Prompt, Tool, set_prompt, tool_to_pb
from protos.tandem.v1 import common_pb2, inference_pb2
from shared.errors import InvalidRequestError
from shared.types.options import Mode
from shared.types.sampling import SamplingParams
from shared.wire.options import mode_to_pb
from shared.wire.sampling import sampling_to_pb

_Value = TypeVar("_Value")

ModeName = Literal["auto", "full", "prune", "sparse", "both"]
"""Which of the two methods runs."""

PartName = Literal["system", "last_user", "question"]
"""A part of a conversation that is named instead of counted in tokens."""

ToolModeName = Literal["auto", "none", "required"]
"""How free the model is to call tools."""


class GenerateParams(TypedDict, total=False):
    """Keyword arguments of a call; what is left out is the gateway's or the profile's choice."""

    model: str
    """Served model name; without it, the only one."""
    n: int
    """Answers to the one prompt."""
    temperature: float
    """0 is greedy; 1 without it."""
    top_p: float
    """Nucleus mass in (0, 1]."""
    top_k: int
    """Highest-ranked tokens considered; 0 is off."""
    min_p: float
    """Tokens below this share of the top probability are dropped."""
    presence_penalty: float
    """Subtracted once from the logit of every token already generated."""
    frequency_penalty: float
    """Subtracted per earlier occurrence."""
    repetition_penalty: float
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    seed: int
    """The same seed gives the same answer; 0 draws one."""
    logit_bias: Mapping[int, float]
    """Added to the logits of tokens."""
    logprobs: int
    """Log-probabilities of the tokens and of so many candidates."""
    max_tokens: int
    """Upper bound of the answer; without it, the remaining context."""
    min_tokens: int
    """Nothing ends the answer before so many tokens."""
    stop: str | Sequence[str]
    """Strings that end the answer."""
    stop_token_ids: Sequence[int]
    """Token ids that end the answer."""
    ignore_eos: bool
    """End-of-text does not end the answer."""
    mode: ModeName
    """Which methods run."""
    keep_rate: float
    """Share of prompt tokens kept after the pruning layer, in (0, 1]."""
    min_keep: int
    """Floor of the kept count, in tokens."""
    mass: float
    """In place of keep_rate: share of the attention mass that the kept tokens hold."""
    min_rate: float
    """Least keep rate that mass may come to."""
    max_rate: float
    """Largest keep rate that mass may come to."""
    protect: Sequence[tuple[int, int] | PartName]
    """Ranges of prompt tokens, ends not included, and parts of the conversation that are kept."""
    window: int | Literal["question"]
    """Observation window in tokens, or the question's own."""
    page_policy: str
    """What chooses the KV pages that decode reads."""
    page_budget: int
    """Pages a layer reads, recency included."""
    recency_pages: int
    """Last pages, always read."""
    page_layout: Literal["board", "segment"]
    """How a choice serves layers that hold other tokens."""
    page_heads: Literal["shared", "kv_head"]
    """Whom a choice is for."""
    page_refresh: int
    """Steps between two choices."""
    page_mass: float
    """Share of the score's mass that the chosen pages hold."""
    trace: bool
    """The report tells which tokens were kept and which pages were read."""
    replay: bool
    """The answer may go on at another pair when its decode worker dies in mid-stream."""
    response_format: Literal["text", "json_object"] | Mapping[str, Any]
    """What the answers must be; a mapping is a JSON schema."""
    tools: Sequence[Tool]
    """What the model may call."""
    tool_choice: ToolModeName
    """Whether it must."""
    allowed_tools: Sequence[str]
    """Names of the tools that may be called; without it, all."""
    parallel_tool_calls: bool
    """Several calls in one answer."""
    timeout_s: float | None
    """Longest life of this call, in seconds; without it, the client's."""
    request_id: str
    """Names the request in logs of every role; without it, one is made."""
    traceparent: str
    """W3C trace that the request belongs to."""
    tracestate: str
    """What vendors add to it."""


_MODES = {mode.value: mode_to_pb(mode) for mode in Mode}
_PARTS = {
    "system": inference_pb2.PROMPT_PART_SYSTEM,
    "last_user": inference_pb2.PROMPT_PART_LAST_USER,
    "question": inference_pb2.PROMPT_PART_QUESTION,
}
_TOOL_MODES = {
    "auto": inference_pb2.TOOL_MODE_AUTO,
    "none": inference_pb2.TOOL_MODE_NONE,
    "required": inference_pb2.TOOL_MODE_REQUIRED,
}
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "logprobs",
)  # fmt: skip
_OPTIONS = (
    "keep_rate", "min_keep", "mass", "min_rate", "max_rate", "page_policy", "page_budget",
    "recency_pages", "page_layout", "page_heads", "page_refresh", "page_mass", "trace",
    "replay",
)  # fmt: skip


def request_of(prompt: Prompt, params: GenerateParams) -> inference_pb2.GenerateRequest:
    """The request of a call.

    Raises:
        InvalidRequestError: a value that cannot be written, such as a negative count; what can be
            is judged by the gateway.
        TypeError: an argument that is none, or of another type.
    """
    unknown = sorted(params.keys() - GenerateParams.__annotations__.keys())
    if unknown:
        raise TypeError(f"{unknown[0]!r} is no argument of a call")
    request = inference_pb2.GenerateRequest()
    try:
        set_prompt(request, prompt)
        _set_answers(request, params)
        _set_options(request, params)
        _set_tools(request, params)
    except ValueError as error:  # protobuf's word for a number or a text that no field can hold
        raise InvalidRequestError(
            f"the request cannot be written: {error}; counts are not negative and texts are UTF-8"
        ) from error
    return request


def _set_answers(request: inference_pb2.GenerateRequest, params: GenerateParams) -> None:
    request.model = params.get("model", "")
    request.num_answers = params.get("n", 0)
    request.ignore_eos = params.get("ignore_eos", False)
    sampling = {name: value for name, value in params.items() if name in _SAMPLING}
    bias = params.get("logit_bias", {})
    if sampling or bias:
        drawn = SamplingParams(**sampling, logit_bias=tuple(bias.items()))  # type: ignore[arg-type]
        request.sampling.CopyFrom(sampling_to_pb(drawn))
    stop = common_pb2.StopConditions(
        max_tokens=params.get("max_tokens", 0),
        min_tokens=params.get("min_tokens", 0),
        token_ids=params.get("stop_token_ids", ()),
        strings=_listed(params.get("stop", ())),
    )
    if stop.ListFields():
        request.stop.CopyFrom(stop)
    form = params.get("response_format", "text")
    if isinstance(form, Mapping):
        request.response_format.json_schema = json.dumps(form)
    elif form == "json_object":
        request.response_format.json_object = True
    elif form != "text":
        raise _no_choice("response_format", form, ("text", "json_object", "a JSON schema"))


def _set_options(request: inference_pb2.GenerateRequest, params: GenerateParams) -> None:
    options = request.options
    for name, value in params.items():
        if name in _OPTIONS:
            setattr(options, name, value)
    if "mode" in params:
        options.mode = _chosen("mode", params["mode"], _MODES)
    for entry in params.get("protect", ()):
        if isinstance(entry, str):
            request.protect_parts.append(_chosen("protect", entry, _PARTS))
        else:
            options.protect.add(start=entry[0], end=entry[1])
    window = params.get("window")
    if window == "question":
        request.question_window = True
    elif isinstance(window, int):
        options.observation_window = window
    elif window is not None:
        raise _no_choice("window", window, ("question", "a number of tokens"))


def _set_tools(request: inference_pb2.GenerateRequest, params: GenerateParams) -> None:
    request.tools.extend(tool_to_pb(tool) for tool in params.get("tools", ()))
    if "tool_choice" in params:
        request.tool_choice.mode = _chosen("tool_choice", params["tool_choice"], _TOOL_MODES)
    if "allowed_tools" in params:
        request.tool_choice.allowed.extend(_listed(params["allowed_tools"]))
    if "parallel_tool_calls" in params:
        request.parallel_tool_calls = params["parallel_tool_calls"]


def _listed(values: str | Sequence[str]) -> Sequence[str]:
    """A single text is one entry, not its characters."""
    return [values] if isinstance(values, str) else values


def _chosen(name: str, value: str, known: Mapping[str, _Value]) -> _Value:
    if value not in known:
        raise _no_choice(name, value, tuple(known))
    return known[value]


def _no_choice(name: str, value: object, known: Sequence[str]) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} {value!r} is unknown; give one of {', '.join(known)}", param=name
    )
