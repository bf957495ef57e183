"""Fields that the generating endpoints share."""

from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from shared.types.methods import PageHeads, PageLayout
from shared.types.options import PromptPart
from shared.types.page_policies import PagePolicyName
from shared.wire.sampling import MAX_BIAS, MAX_BRANCHES, MAX_LOGPROBS, MAX_STOP_STRINGS

MAX_SEED = 2**64 - 1
MIN_SEED = -(2**63)

ACCEPTED_WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "verbosity",
        "parallel_tool_calls",
    }
)
"""Known fields of the API that need nothing from us; they are not reported as ignored."""


_PARTS = [part.value for part in PromptPart]

ProtectEntry = Literal["system", "last_user", "question"] | tuple[int, int]
"""What `tandem.protect` lists: a part of the conversation, or prompt tokens [start, end]."""


def _protect_entries(value: object) -> object:
    """JSON has no pairs: every list of two whole numbers becomes one."""
    if not isinstance(value, list):
        return value
    entries: list[object] = []
    for entry in value:
        pair = isinstance(entry, list) and [type(number) for number in entry] == [int, int]
        if not pair and entry not in _PARTS:
            raise ValueError(
                f"{str(entry)[:32]!r} is neither a range of prompt tokens like [0, 20] nor one of "
                + ", ".join(_PARTS)
            )
        entries.append(tuple(entry) if pair else entry)
    return entries


def _window(value: object) -> object:
    """One message for both forms, under the field's own name."""
    if value is not None and value != "question" and type(value) is not int:
        raise ValueError(f'{str(value)[:32]!r} is neither a number of tokens nor "question"')
    return value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


_StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOP_STRINGS)
]


_STOP_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "maxItems": MAX_STOP_STRINGS,
        },
        {"type": "null"},
    ]
}
_BIAS_SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        },
        {"type": "null"},
    ]
}


class Body(BaseModel):
    """Base of every object in a request: no coercion, no NaN, unknown fields are kept aside."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    def objects(self) -> "dict[str, Body | None]":
        """Objects inside whose unknown fields are reported as well, by dotted name."""
        return {}

    def without_effect(self) -> list[str]:
        """Dotted names of known fields that were set to something that changes nothing."""
        return []


TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
"""How many alternatives a client may ask for."""

TokenLimit = Annotated[int, Field(ge=1, lt=2**31)]
"""How long an answer may be, in tokens."""


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class TandemOptions(Body):
    """`tandem`: overrides of the model profile."""

    mode: Literal["auto", "full", "prune", "sparse", "both"] | None = None
    keep_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    min_keep: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    page_budget: Annotated[int, Field(ge=3, lt=2**31)] | None = None
    recency_pages: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    # Strict mode would want members of the enums, which JSON cannot hold.
    page_policy: Annotated[PagePolicyName | None, Field(strict=False)] = None
    page_layout: Annotated[PageLayout | None, Field(strict=False)] = None
    page_heads: Annotated[PageHeads | None, Field(strict=False)] = None
    page_refresh: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    page_mass: Annotated[float, Field(gt=0, le=1)] | None = None
    protect: Annotated[list[ProtectEntry] | None, BeforeValidator(_protect_entries)] = None
    window: Annotated[Literal["question"] | int | None, BeforeValidator(_window)] = None
    mass: Annotated[float, Field(gt=0, le=1)] | None = None
    min_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    max_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    trace: bool | None = None
    replay: bool | None = None


class GenerationBody(Body):
    """What every generating endpoint takes."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]] | None,
        WithJsonSchema(_BIAS_SCHEMA),
    ] = None
    stop: Annotated[
        _StopStrings | None, BeforeValidator(_as_list), WithJsonSchema(_STOP_SCHEMA)
    ] = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tandem: TandemOptions | None = None

    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def wants_running_usage(self) -> bool:
        """Whether every chunk carries usage."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def objects(self) -> dict[str, Body | None]:
        """The options of the stream and of the pair."""
        return {"stream_options": self.stream_options, "tandem": self.tandem}

    def branches(self) -> int:
        """Answers to each prompt."""
        return 1

    @abstractmethod
    def top_logprob_count(self) -> int | None:
        """Alternatives asked for at each token; None without log-probabilities."""

    @abstractmethod
    def answer_limit(self) -> int | None:
        """The answer's token limit as the client set it."""

    def unsupported(self) -> dict[str, tuple[Any, str]]:
        """Known parameters with a use that this server cannot honour: name to (asked for, hint).

        What is asked for counts when it is truthy.
        """
        return {}


class ChoicesBody(GenerationBody):
    """What the endpoints take whose answers are numbered choices."""

    max_tokens: TokenLimit | None = None
    n: Annotated[int, Field(ge=1, le=MAX_BRANCHES)] | None = None

    def branches(self) -> int:
        """`n`."""
        return self.n or 1

    def choices(self) -> int:
        """Answers in all."""
        return self.branches()

    def answer_limit(self) -> int | None:
        """`max_tokens`."""
        return self.max_tokens
