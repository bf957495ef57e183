"""What workers report, without their messages."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.types.handoff import HandoffKey
from shared.types.options import RequestOptions
from shared.types.page_summary import PageSummary
from shared.types.sampling import FinishReason, SampledToken, SamplingParams, StopConditions
from shared.types.trace import PageTrace, PromptTrace


@dataclass(frozen=True, slots=True)
class Target:
    """A worker and where to reach it."""

    worker_id: str
    """Its name."""
    address: str
    """host:port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCall:
    """Everything a prefill needs."""

    handoff: HandoffKey
    """Names the attempt."""
    token_ids: Sequence[int]
    """The prompt, and in a replay the answer's tokens before the forced one."""
    sampling: SamplingParams
    """Of the first token."""
    stop: StopConditions
    """Sizes the decode reservation."""
    options: RequestOptions
    """Overrides of the profile."""
    targets: tuple[Target, ...]
    """Decode workers in order of preference."""
    grammar: str = ""
    """What the answer must conform to; empty: anything."""
    branches: int = 1
    """Answers that share the prompt."""
    forced_first_tokens: tuple[int, ...] = ()
    """The tokens that a client has already seen, one a branch; or none."""
    earlier_tokens: int = 0
    """A replay: how many of `token_ids` are the answer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCall:
    """Everything a generation needs."""

    handoff: HandoffKey
    """The adopted handoff."""
    branch: int
    """Which of its answers."""
    first_token: int
    """As the client saw it; in a replay, the last one that it saw."""
    sampling: SamplingParams
    """How to go on."""
    stop: StopConditions
    """When to end."""
    options: RequestOptions
    """Overrides of the profile."""
    grammar: str = ""
    """What the answer must conform to; empty: anything."""
    earlier_tokens: tuple[int, ...] = ()
    """A replay: the answer's tokens before `first_token`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStarted:
    """The prompt's turn came."""

    queue_seconds: float
    """Wait at the prefill worker."""
    kept_tokens: int
    """Tokens kept after the pruning layer."""
    pruned: bool
    """False: all were kept."""
    pruning_reason: str
    """Why it was or was not pruned."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Sampled by the prefill worker."""

    tokens: tuple[SampledToken, ...]
    """One a branch."""
    target: Target | None = None
    """Who gave room for the KV, and may be called already; None from a worker that does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A decode worker holds the KV."""

    target: Target
    """Which."""
    kv_bytes: int
    """Bytes that moved."""
    transport: str
    """What moved them."""
    kept_tokens: int
    """Tokens kept after the pruning layer."""
    phases_s: dict[str, float]
    """Durations, in seconds."""
    lease_s: float
    """How long the prefill worker holds the bytes for a second delivery."""
    trace: PromptTrace | None = None
    """What was kept, when the request asked."""


PrefillEvent = PrefillStarted | FirstTokens | Sealed


@dataclass(frozen=True, slots=True)
class DecodeAccepted:
    """The row joins at the next step."""

    worker_id: str
    """Where."""
    heard_at: float = field(default_factory=time.monotonic)
    """When the gateway heard of it, in monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens."""

    tokens: tuple[SampledToken, ...]
    """In order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFinished:
    """The generation ended."""

    reason: FinishReason
    """STOP or LENGTH; the others arrive as errors."""
    stop_match: str | None
    """What stopped it."""
    attended: int
    """KV slots read."""
    dense: int
    """KV slots full attention would have read."""
    phases_s: dict[str, float]
    """Durations, in seconds."""
    pages: PageSummary | None = None
    """What chose the pages; None from a worker that does not say."""
    trace: PageTrace | None = None
    """Which pages were read, when the request asked."""


DecodeEvent = DecodeAccepted | Tokens | DecodeFinished
