"""What comes back from a gateway: frozen, typed, and without protobuf in sight.

Every event keeps the message that it was read from as `raw`, for fields of newer gateways.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.sdk.prompt import Message, ToolCall
from protos.tandem.v1 import inference_pb2
from shared.types.page_summary import PageSummary
from shared.types.sampling import FinishReason, SampledToken
from shared.types.trace import RequestTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    """The whole prompt, pruned or not."""
    completion_tokens: int
    """Generated tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the pair did for one request."""

    ttft_s: float
    """Arrival to first token at the gateway, in seconds."""
    tokens_per_s: float
    """Tokens after the first, per second of the time after the first; 0 for a single token."""
    phases_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Durations by phase, in seconds, each measured by the process that ran it."""
    prompt_tokens: int
    """Prompt tokens."""
    kept_tokens: int
    """Tokens kept after the pruning layer."""
    kv_bytes: int
    """KV bytes that moved."""
    transport: str
    """What moved them."""
    attended: int
    """KV slots read at decode, summed over layers and steps."""
    dense: int
    """KV slots that full attention over the whole prompt would have read."""
    attended_ratio: float
    """Attended over dense; 0 when nothing was decoded after the first token."""
    replayed_tokens: int
    """Answer tokens that a second pair read again after the first one's decode worker had died."""
    route: str
    """Routing decision and its reason."""
    pages: PageSummary | None
    """What chose the pages that were read; None when nothing was decoded after the first token."""
    trace: RequestTrace | None
    """None unless the call asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """The next part of a call."""

    index: int
    """Which call of the answer, from 0."""
    id: str
    """Names the call; in its first part only."""
    name: str
    """Name of the function; in its first part only."""
    arguments: str
    """What its arguments grow by, as JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New tokens of an answer, and the text that is certain by now."""

    answer: int
    """Which answer grows, from 0."""
    text: str
    """Often empty: half characters, possible stop strings and possible calls are held back."""
    tokens: tuple[SampledToken, ...]
    """The tokens, with log-probabilities when the call asked for them."""
    tool_calls: tuple[ToolCallDelta, ...]
    """What tool calls grow by."""
    raw: inference_pb2.GenerateDelta = field(repr=False, compare=False)
    """As it came."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the tokens."""
        return tuple(token.token_id for token in self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """End of an answer."""

    answer: int
    """Which answer ended, from 0."""
    reason: FinishReason
    """STOP, LENGTH or TOOL_CALLS."""
    stop_match: str | None
    """The stop string, or the stop id in decimal, that ended it."""
    usage: Usage
    """Token counts of this answer."""
    report: Report | None
    """What the pair did for the whole request; with the last answer to end."""
    raw: inference_pb2.GenerateFinished = field(repr=False, compare=False)
    """As it came."""


Event = Delta | Finished
"""What a stream gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One whole answer."""

    text: str
    """Its text, without its tool calls."""
    tokens: tuple[SampledToken, ...]
    """Its tokens; the end-of-text token is not among them."""
    tool_calls: tuple[ToolCall, ...]
    """What the model called."""
    reason: FinishReason
    """Why it ended."""
    stop_match: str | None
    """The stop string, or the stop id in decimal, that ended it."""
    usage: Usage
    """Token counts of this answer."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the tokens."""
        return tuple(token.token_id for token in self.tokens)

    @property
    def message(self) -> Message:
        """The turn that continues the conversation."""
        return Message("assistant", self.text, tool_calls=self.tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """All answers to one prompt."""

    request_id: str
    """Names the request in logs of every role."""
    prompt_tokens: int
    """Tokens in the prompt."""
    answers: tuple[Answer, ...]
    """At least one."""
    report: Report
    """What the pair did."""

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.answers[0].text

    @property
    def usage(self) -> Usage:
        """The prompt once, and the tokens of all answers."""
        completion = sum(answer.usage.completion_tokens for answer in self.answers)
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=completion)
