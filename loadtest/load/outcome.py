"""What became of one request."""

from dataclasses import dataclass
from enum import StrEnum

MEASURES = ("ttft", "itl_mean", "itl_max", "e2e", "tpot")
"""Each is a field `<measure>_s` of an outcome."""


class Failure(StrEnum):
    """Why a request did not finish correctly, beside `http_<status>` and `grpc_<code>`."""

    CONNECT = "connect"
    """No connection."""
    TIMEOUT = "timeout"
    """It took longer than a request may."""
    ERROR_FRAME = "error_frame"
    """The stream said that the answer failed."""
    TRUNCATED = "truncated"
    """The stream broke, or ended without its last mark."""
    BAD_FRAME = "bad_frame"
    """A frame that is no chunk."""
    NO_FINISH_REASON = "no_finish_reason"
    """The stream was whole, but nothing said why the answer ended."""
    NO_USAGE = "no_usage"
    """Nothing said how many tokens there were."""
    NO_CALL = "no_call"
    """The answer had to be a call and was none."""
    BAD_CALL = "bad_call"
    """The arguments of a call are no JSON object."""
    NO_TEXT = "no_text"
    """The answer was empty."""
    UNFINISHED = "unfinished"
    """It was still under way when the run was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request; durations in seconds, None where there is none."""

    index: int
    """Its place in the run."""
    kind: str
    """Its class."""
    stage: int
    """The stage that it arrived in; 0 in a closed loop."""
    due_s: float
    """When it should have begun, since the run began."""
    started_s: float
    """When it began, before its connection."""
    turn: int = 0
    """Which request of its conversation, from 0."""
    ended_s: float | None = None
    """When nothing more came, since the run began."""
    e2e_s: float | None = None
    """Start to the end of the stream."""
    ttft_s: float | None = None
    """Start to the first text."""
    itl_mean_s: float | None = None
    """Mean time between two pieces of text."""
    itl_max_s: float | None = None
    """Longest time between two pieces of text."""
    tpot_s: float | None = None
    """First to last text, by token after the first."""
    prompt_tokens: int = 0
    """By the server's usage."""
    answer_tokens: int = 0
    """By the server's usage."""
    kept_tokens: int = 0
    """Prompt tokens that pruning kept, by the server's report; 0 without one."""
    attended: int = 0
    """KV slots read, by the server's report."""
    dense: int = 0
    """KV slots that full attention would have read, by the server's report."""
    failure: str | None = None
    """Why it failed."""
    detail: str = ""
    """What was said about the failure."""
    left: bool = False
    """The client left on purpose."""

    @property
    def finished(self) -> bool:
        """It ended correctly."""
        return self.failure is None and not self.left
