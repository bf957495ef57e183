"""What the bench of a prompt's pass runs, and the flags that say so."""

import argparse
from dataclasses import dataclass

from loadtest.micro.models import WeightSpread
from loadtest.micro.pass_parity import PASS_CASES
from loadtest.micro.pass_peer import PEER_KERNELS
from loadtest.micro.vllm_peer import VLLM
from prefill_service.config import PrefillConfig
from shared.errors import ConfigError
from shared.model.shapes import MODEL_SHAPES

TOKENS = (10_000, 32_768, 65_536)
"""Prompts that are timed."""

KEEP = (0.1, 0.2, 0.4)
"""Keep rates that are timed."""

KNOWN_PEERS = (*PEER_KERNELS, VLLM)
"""Peers that a plan may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """What is run."""

    shape: str = "llama-3.1-8b"
    """Name of a model's shape."""
    weights: WeightSpread = WeightSpread.NORMAL
    """How they are drawn."""
    tokens: tuple[int, ...] = TOKENS
    """Prompts."""
    keep: tuple[float, ...] = KEEP
    """Keep rates."""
    long_keep: tuple[float, ...] = KEEP
    """Those of `keep` that prompts of more than 16k tokens run with, too."""
    repeats: tuple[int, ...] = (10, 10, 4)
    """Runs of each arm that count, by prompt; the last one stands for those that follow."""
    chunk_tokens: int = PrefillConfig().device_chunk_tokens
    """Tokens of a block."""
    peer: tuple[str, ...] = KNOWN_PEERS
    """Kernels of transformers, and vLLM; each runs where it is installed."""
    vllm_chunk: int | None = None
    """Most prompt tokens of one of vLLM's steps, 0: all; None: the faster way of each."""
    cases: int = len(PASS_CASES)
    """Small models that are compared first, at least one."""
    parts: bool = False
    """Also record our arms' kernels, once an arm and prompt, after everything was timed."""

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """Each prompt's tokens and the repeats of its arms."""
        last = self.repeats[-1:] * len(self.tokens)
        return tuple(zip(self.tokens, (*self.repeats, *last), strict=False))


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `plan_of`."""
    defaults = PassPlan()
    parser.add_argument("--shape", default=defaults.shape, help=", ".join(MODEL_SHAPES))
    parser.add_argument(
        "--weights",
        choices=[spread.value for spread in WeightSpread],
        default=defaults.weights.value,
        help="how our weights are drawn; uniform: within 1e-3 of 0, as vLLM draws its own",
    )
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="prompts to time")
    parser.add_argument("--keep", default=",".join(map(str, KEEP)), help="keep rates")
    parser.add_argument(
        "--long-keep", default=",".join(map(str, KEEP)), help="those of them beyond 16k tokens"
    )
    parser.add_argument(
        "--repeats", default=",".join(map(str, defaults.repeats)), help="of every arm, by prompt"
    )
    parser.add_argument("--chunk-tokens", type=int, default=defaults.chunk_tokens)
    parser.add_argument(
        "--peer",
        default="cudnn,flash,vllm",
        help="cudnn and flash: kernels of transformers; vllm; empty leaves all out",
    )
    parser.add_argument(
        "--vllm-chunk",
        type=int,
        help="most prompt tokens of one of vLLM's steps, 0: all; unless given, the faster way",
    )
    parser.add_argument(
        "--cases", type=int, default=defaults.cases, help="small models that are compared first"
    )
    parser.add_argument(
        "--parts", action="store_true", help="also record kernels of full and two keep rates"
    )


def plan_of(given: argparse.Namespace) -> PassPlan:
    """The plan that the flags ask for.

    Raises:
        ConfigError: a list has a part that is no number.
    """
    return PassPlan(
        shape=given.shape,
        weights=WeightSpread(given.weights),
        tokens=tuple(int(n) for n in _numbers(given.tokens)),
        keep=tuple(_numbers(given.keep)),
        long_keep=tuple(_numbers(given.long_keep)),
        repeats=tuple(int(n) for n in _numbers(given.repeats)),
        chunk_tokens=given.chunk_tokens,
        peer=tuple(_peer_name(name) for name in given.peer.split(",") if name),
        vllm_chunk=given.vllm_chunk,
        cases=given.cases,
        parts=given.parts,
    )


def _peer_name(text: str) -> str:
    return text if text == VLLM else f"transformers ({text})"


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{text!r} is no list of numbers: write them like 0.1,0.2") from None
