"""What one run came to, whoever made it, and whether two runs did the same work."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.load.results import REQUESTS
from loadtest.spread import percentile
from shared.errors import UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run; times in seconds, one for each request that finished."""

    ttft_s: tuple[float, ...]
    """Start of a request to its first text, by the tool's own clock."""
    late_s: tuple[float, ...]
    """How long after its moment a request began."""
    tokens: tuple[tuple[int, int], ...]
    """Of each prompt and its answer, as the server counted."""
    failed: int
    """Requests that did not finish."""

    @property
    def p50_s(self) -> float:
        """Median time to first token, by nearest rank."""
        return percentile(self.ttft_s, 50)

    def to_json(self) -> dict[str, Any]:
        """Counts and percentiles, JSON-ready."""
        return {
            "requests": len(self.ttft_s),
            "failed": self.failed,
            "prompt_tokens": sum(prompt for prompt, _ in self.tokens),
            "answer_tokens": sum(answer for _, answer in self.tokens),
            "ttft": {"p50_s": self.p50_s, "p95_s": percentile(self.ttft_s, 95)},
            "late": {"p50_s": percentile(self.late_s, 50), "max_s": max(self.late_s)},
        }


def our_sample(folder: Path) -> Sample:
    """A run of the load suite, by its request lines."""
    text = (folder / REQUESTS).read_text(encoding="utf-8")
    rows: Sequence[Mapping[str, Any]] = [json.loads(line) for line in text.splitlines()]
    done = [row for row in rows if row["failure"] is None]
    return Sample(
        ttft_s=tuple(row["ttft_s"] for row in done),
        late_s=tuple(max(0.0, row["started_s"] - row["due_s"]) for row in done),
        tokens=tuple((row["prompt_tokens"], row["answer_tokens"]) for row in done),
        failed=len(rows) - len(done),
    )


def check_same_work(ours: Sample, theirs: Sample, *, planned: int, repeat: int) -> None:
    """Two times can be compared only when all else is equal.

    Raises:
        UnavailableError: a request failed, or the tools asked for other work.
    """
    for name, sample in (("ours", ours), ("theirs", theirs)):
        if sample.failed or len(sample.ttft_s) != planned:
            raise UnavailableError(
                f"repeat {repeat + 1} cannot be compared: of {planned} requests of {name}, "
                f"{len(sample.ttft_s)} finished and {sample.failed} failed; lower --rate, or see "
                "the run's files for what went wrong, and start again with another --out"
            )
    others = Counter(theirs.tokens) - Counter(ours.tokens)
    if others:
        raise UnavailableError(
            f"repeat {repeat + 1} cannot be compared: prompts and answers of {sorted(others)} "
            "tokens are in theirs and not in ours, though the requests are the same; the server "
            "was changed in between, or this version of the witness asks otherwise"
        )
