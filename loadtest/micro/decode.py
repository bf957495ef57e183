"""Decode speed of one row: dense and a page policy against transformers, arms alternating.

All arms run in one process and continue the same prompt from the same KV. Nothing is measured
before our dense tokens equal transformers'.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from decode_service.engine.solo import PromptTensors, solo_row
from loadtest.micro.decode_peer import TransformersPeer
from loadtest.micro.measure import provenance
from loadtest.micro.prompt import real_prompt
from loadtest.spread import paired_ratios, spread
from shared.errors import ConfigError, InternalError
from shared.model.transformer import Transformer
from shared.model.weights import LoadedModel, load_model
from shared.types.effective import effective_sparsity
from shared.types.methods import SparsityParams
from shared.types.options import RequestOptions
from shared.types.page_policies import PagePolicyName
from shared.types.page_summary import summary_of

NEAR_TIE = 1e-3
"""Top-2 logit gap below which a step may differ between exact implementations."""

_PEER = "transformers"


@dataclass(frozen=True, slots=True)
class _Arm:
    """One of our methods, ready to run from the same prompt again and again."""

    runner: DecodeRunner
    start: Sequence

    def run(self, steps: int) -> tuple[Sequence, float]:
        """The finished row, and the seconds taken."""
        row = dataclasses.replace(self.start, generated=list(self.start.generated))
        started = time.perf_counter()
        for _ in range(steps):
            self.runner.step([row])
        return row, time.perf_counter() - started


def bench_decode(  # noqa: PLR0913 - a flag of the command each
    *,
    model: str,
    context: int,
    new_tokens: int,
    page_budget: int,
    policy: PagePolicyName = PagePolicyName.DELTA,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measures greedy tokens per second after a prompt of real text, in float32.

    Args:
        model: catalog name, folder or hub id.
        context: prompt tokens.
        new_tokens: decode steps of one run.
        page_budget: K; other parameters come from the model's profile.
        policy: compared with dense.
        repeats: runs of each arm.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: arms (tokens_per_s), speedup (paired with transformers), parity, sparsity, attended
        and dense token-layers a step, and the provenance of the run.

    Raises:
        ConfigError: the sizes do not fit the model or each other.
        InvalidRequestError: the policy does not run on this budget; dense has none.
        InternalError: our dense tokens are not transformers'.
    """
    if min(new_tokens, repeats) < 1:
        raise ConfigError("new_tokens and repeats must be at least 1 each; raise the lower one")
    loaded = load_model(model)
    sparsity = _sparsity(loaded, policy=policy, page_budget=page_budget)
    token_ids = real_prompt(loaded, tokens=context, room=new_tokens)
    progress(f"transformers reads a prompt of {context} tokens")
    peer = TransformersPeer(loaded.folder)
    prompt, params = peer.prefill(token_ids), {"dense": None, policy.value: sparsity}
    arms = {
        name: _arm(loaded.model, prompt, peer.first_token, chosen, new_tokens=new_tokens)
        for name, chosen in params.items()
    }
    parity = _check_parity(peer, arms["dense"], steps=new_tokens, progress=progress)
    rows, seconds = _alternate(peer, arms, steps=new_tokens, repeats=repeats, progress=progress)
    return {
        "benchmark": "decode",
        "model": loaded.name,
        "dtype": "float32",
        "context": context,
        "new_tokens": new_tokens,
        "repeats": repeats,
        "sparsity": summary_of(sparsity).to_json() | {"full_layers": list(sparsity.full_layers)},
        "parity": parity,
        **_speeds(seconds, steps=new_tokens),
        **_reads(rows, steps=new_tokens),
        **provenance(
            command=f"tandem bench decode --model {model} --context {context} --new-tokens "
            f"{new_tokens} --page-budget {page_budget} --policy {policy.value} --repeats {repeats}"
        ),
    }


def _sparsity(loaded: LoadedModel, *, policy: PagePolicyName, page_budget: int) -> SparsityParams:
    options = RequestOptions(page_policy=policy, page_budget=page_budget)
    depth = loaded.model.config.num_layers
    params = effective_sparsity(loaded.profile.sparsity, options, num_layers=depth)
    assert params is not None, "the mode is auto"
    return params


def _arm(
    model: Transformer,
    prompt: PromptTensors,
    first_token: int,
    sparsity: SparsityParams | None,
    *,
    new_tokens: int,
) -> _Arm:
    cache, row = solo_row(
        model,
        prompt=prompt,
        first_token=first_token,
        sparsity=sparsity,
        max_tokens=new_tokens + 1,
    )
    return _Arm(DecodeRunner(model, cache, attention=TorchDecodeAttention()), row)


def _check_parity(
    peer: TransformersPeer, dense: _Arm, *, steps: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Compares tokens up to the first near-tie; also warms both arms up."""
    theirs, gaps, _ = peer.run(steps)
    ours = dense.run(steps)[0].generated[1:]
    compared, near_tie = steps, None
    for index, (token, wanted, gap) in enumerate(zip(ours, theirs, gaps, strict=True)):
        if gap < NEAR_TIE:
            compared, near_tie = index, gap
            break
        if token != wanted:
            raise InternalError(
                f"step {index} gave token {token}, transformers {wanted} (top-2 gap {gap:.4f}): "
                "our dense decode is wrong, so its speed means nothing; report this"
            )
    progress(f"dense tokens equal transformers' over {compared} steps")
    return {"equal": True, "compared": compared, "near_tie_gap": near_tie}


def _alternate(
    peer: TransformersPeer,
    arms: dict[str, _Arm],
    *,
    steps: int,
    repeats: int,
    progress: Callable[[str], None],
) -> tuple[dict[str, Sequence], dict[str, list[float]]]:
    """Runs all arms once a repeat; gives our last rows, and the seconds of every run."""
    for arm in arms.values():
        arm.run(1)
    rows: dict[str, Sequence] = {}
    seconds: dict[str, list[float]] = {name: [] for name in (_PEER, *arms)}
    for repeat in range(repeats):
        seconds[_PEER].append(peer.run(steps)[2])
        for name, arm in arms.items():
            rows[name], taken = arm.run(steps)
            seconds[name].append(taken)
        rates = ", ".join(f"{name} {steps / taken[-1]:.1f}" for name, taken in seconds.items())
        progress(f"repeat {repeat + 1} of {repeats}, tokens/s: {rates}")
    return rows, seconds


def _reads(rows: dict[str, Sequence], *, steps: int) -> dict[str, Any]:
    attended = {name: row.attended / steps for name, row in rows.items()}
    return {"attended": attended, "dense": rows["dense"].dense / steps}


def _speeds(seconds: dict[str, list[float]], *, steps: int) -> dict[str, Any]:
    arms = {
        name: {"tokens_per_s": spread([steps / s for s in taken]), "seconds": taken}
        for name, taken in seconds.items()
    }
    ours = [name for name in seconds if name != _PEER]
    speedup = {name: paired_ratios(seconds[_PEER], seconds[name]) for name in ours}
    return {"arms": arms, "speedup": speedup}
