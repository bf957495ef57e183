"""What the pipeline is asked for and what it answers with, whatever the API."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.answer_plan import ANY_ANSWER, AnswerPlan
from gateway.principal import Principal, current_principal
from gateway.timeline import Timeline
from shared.types.options import RequestOptions
from shared.types.page_summary import PageSummary
from shared.types.sampling import FinishReason, SampledToken, SamplingParams, StopConditions
from shared.types.trace import PageTrace, PromptTrace, RequestTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """One prompt to answer, checked and tokenized."""

    request_id: str
    """Names the request in logs of every role; the handoff id is made from it."""
    endpoint: str
    """Route template or RPC name, for metrics."""
    model: str
    """Served model name."""
    prompt_ids: Sequence[int]
    """The prompt."""
    sampling: SamplingParams
    """How tokens are drawn; the seed is set."""
    stop: StopConditions
    """When the answer ends."""
    branches: int = 1
    """Answers to the one prompt, each with draws of its own."""
    options: RequestOptions
    """Overrides of the model profile."""
    plan: AnswerPlan = ANY_ANSWER
    """What the answers must be."""
    include_stop: bool = False
    """The matched stop string stays in the text."""
    arrived: float
    """Arrival, on the monotonic clock."""
    deadline: float
    """End of the request's time, on the monotonic clock."""
    principal: Principal = field(default_factory=current_principal)
    """Whose request it is: the caller of the task that makes the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """New tokens, and the text that is certain by now."""

    text: str
    """Often empty: half characters and possible stop strings are held back."""
    tokens: tuple[SampledToken, ...]
    """The tokens of the answer that arrived, in order; the end-of-text token is not among them."""
    completion_tokens: int
    """Generated so far, the end-of-text token included."""
    branch: int = 0
    """Which of the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """End of an answer."""

    reason: FinishReason
    """STOP or LENGTH."""
    stop_match: str | None
    """The stop string, or the stop id in decimal, that ended it."""
    prompt_tokens: int
    """The whole prompt, pruned or not."""
    completion_tokens: int
    """Generated tokens, the end-of-text token included."""
    report: "RequestReport"
    """What the pair did; complete in the last answer to end."""
    branch: int = 0
    """Which of the answers."""
    last: bool = True
    """All answers have ended."""


Event = TextDelta | Finished


@dataclass(slots=True, kw_only=True)
class Try:
    """One pair that a request was sent to."""

    prefill: str
    """Name of the prefill worker."""
    decode: str
    """Name of the decode worker that was meant to take the KV, or took it."""
    failed: str = ""
    """Error code, when it came to nothing."""


@dataclass(slots=True, kw_only=True)
class RequestReport:
    """What the pair did for one request; filled in while it runs."""

    ttft_s: float = 0.0
    """Arrival to first token at the gateway, in seconds."""
    tokens_per_s: float = 0.0
    """Tokens after the first, per second of the time after the first; 0 for a single token."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Durations by phase, in seconds, each measured by the process that ran it."""
    prompt_tokens: int = 0
    """Prompt tokens."""
    completion_tokens: int = 0
    """Generated tokens of all answers."""
    finish_reasons: tuple[FinishReason, ...] = ()
    """Why the model stopped, one an answer; empty before the end."""
    kept_tokens: int = 0
    """Tokens kept after the pruning layer."""
    kv_bytes: int = 0
    """KV bytes that moved."""
    transport: str = "none"
    """What moved them."""
    attended: int = 0
    """KV slots read at decode, summed over layers and steps."""
    dense: int = 0
    """KV slots that full attention over the whole prompt would have read."""
    replayed_tokens: int = 0
    """Answer tokens that a second pair read again after the first one's decode worker had died."""
    route: str = ""
    """Which workers, chosen how, and whether the prompt was pruned."""
    pages: PageSummary | None = None
    """What chose the pages that were read; None until decode has ended."""
    traced: bool = False
    """The client asked for a trace."""
    timeline: Timeline = field(default_factory=Timeline)
    """When the phases were."""
    tries: list[Try] = field(default_factory=list)
    """Pairs that were tried, in order."""
    prompt_trace: PromptTrace | None = None
    """Which tokens were kept; None unless traced."""
    page_trace: PageTrace | None = None
    """Which pages the first answer read; None unless traced."""

    @property
    def attended_ratio(self) -> float:
        """Attended over dense; 0 when nothing was decoded after the first token."""
        return self.attended / self.dense if self.dense else 0.0

    def trace(self) -> RequestTrace:
        """Where the time went so far and, when the client asked, what was kept and read."""
        return RequestTrace(
            waterfall=self.timeline.bars(self.phases_s),
            ttft_s=self.ttft_s,
            total_s=self.timeline.total_s,
            prompt=self.prompt_trace,
            pages=self.page_trace,
        )

    def extension(self) -> dict[str, object]:
        """The `tandem` object of a response, with the trace of a client that asked for it."""
        return self.to_json() | ({"trace": self.trace().to_json()} if self.traced else {})

    def to_json(self) -> dict[str, object]:
        """The figures of the `tandem` object; durations in milliseconds."""
        return {
            "ttft_ms": round(self.ttft_s * 1000, 3),
            "tokens_per_s": round(self.tokens_per_s, 3),
            "phases_ms": {name: round(s * 1000, 3) for name, s in self.phases_s.items()},
            "prompt_tokens": self.prompt_tokens,
            "kept_tokens": self.kept_tokens,
            "kv_bytes": self.kv_bytes,
            "transport": self.transport,
            "attended": self.attended,
            "dense": self.dense,
            "attended_ratio": round(self.attended_ratio, 4),
            "pages": None if self.pages is None else self.pages.to_json(),
            "replayed_tokens": self.replayed_tokens,
            "route": self.route,
        }
