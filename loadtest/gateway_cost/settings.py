"""What one run of the gateway's benchmark does."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """Sizes of both parts; the defaults are those that the limits are stated for."""

    model_dir: Path
    """Folder whose tokenizer and chat template are used."""
    gateway_command: Callable[[list[str]], list[str]]
    """Makes the command line of a gateway from its flags."""
    repeats: int = 5
    """Runs of each arm; they alternate."""
    seed: int = 0
    """Of the arrivals."""

    arrivals_per_s: float = 20.0
    """Requests that begin in a second, as a Poisson process."""
    open_streams: int = 32
    """Streams that are open meanwhile."""
    seconds: float = 10.0
    """How long requests arrive in one run."""
    prompt_tokens: int = 128
    """Tokens of a prompt, about."""
    answer_tokens: int = 16
    """Tokens of an answer to an arrival."""
    prefill_s: float = 0.02
    """Simulated time from a prefill's call to its first token."""
    token_s: float = 0.05
    """Simulated time between two tokens of a stream."""

    streams: int = 32
    """Streams side by side when tokens come as fast as they are taken; 0 leaves that part out."""
    stream_tokens: int = 1_500
    """Tokens of each."""
    long_prompts: tuple[int, ...] = (10_000, 32_000)
    """Lengths in tokens of prompts that come as ready ids, one at a time; none leaves that part
    out."""
    long_requests: int = 8
    """Requests of each length and client in one run."""
    tokens_per_message: tuple[int, ...] = (1, 4)
    """Tokens that a decode worker puts into one message; each is measured by itself."""

    def __post_init__(self) -> None:
        counts = {
            "repeats": self.repeats,
            "open_streams": self.open_streams,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "stream_tokens": self.stream_tokens,
            "long_requests": self.long_requests,
            **{f"long_prompts {tokens}": tokens for tokens in self.long_prompts},
            **{f"tokens_per_message {size}": size for size in self.tokens_per_message},
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(
                    f"{name} is {count}, but nothing is measured then; give 1 or more"
                )
        if len(set(self.tokens_per_message)) < len(self.tokens_per_message):
            raise ConfigError(
                f"tokens_per_message is {self.tokens_per_message}: one run of a size would replace "
                "another; name each once"
            )
        if min(self.arrivals_per_s, self.seconds, self.prefill_s, self.token_s) <= 0:
            raise ConfigError(
                "arrivals, seconds and the simulated times must be above 0; raise the one that is 0"
            )
