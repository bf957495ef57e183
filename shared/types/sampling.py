"""How tokens are drawn and when an answer ends."""

from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    TOOL_CALLS = "tool_calls"
    """The gateway's own word: the answer ended with its tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn; the defaults leave the distribution as it is."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]."""
    top_k: int = 0
    """Highest-ranked tokens considered; 0 is off."""
    min_p: float = 0.0
    """Drop tokens below min_p times the top probability."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token already generated."""
    frequency_penalty: float = 0.0
    """Subtracted per earlier occurrence among the generated tokens."""
    repetition_penalty: float = 1.0
    """Divides positive, multiplies negative logits of tokens in prompt or output."""
    seed: int = 0
    """Key of the counter-based generator, 0 <= seed < 2**64; draw i of a branch depends on
    (seed, branch, i) alone."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, additive bias) pairs."""
    logprobs: int | None = None
    """None: no log-probabilities; k: the chosen token's and the k best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConditions:
    """When generation ends."""

    max_tokens: int
    """Upper bound of generated tokens, the first one included; at least 1."""
    min_tokens: int = 0
    """No stop id or string ends the answer before this many tokens."""
    token_ids: tuple[int, ...] = ()
    """Ids that end the answer; end-of-text ids are listed here unless ignored."""
    strings: tuple[str, ...] = ()
    """Strings that end the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """One generated token."""

    token_id: int
    """Vocabulary index."""
    logprob: float | None = None
    """Natural-log probability under the unmodified distribution, when asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the best candidates, best first."""
