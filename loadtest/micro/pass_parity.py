"""The CUDA path of a prompt's pass against the PyTorch path, before its time counts.

Small random models in the type of the device path; the reference runs the same weights in float32.
A 16-bit path may choose other tokens among near-equals, so choices are compared by the score that
they hold, and logits and KV by a reference that is given the tokens that were kept.

Shapes: T tokens, N kept tokens, C candidates, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from loadtest.micro.kernel_parity import LIMIT, relative_distance
from loadtest.micro.models import in_float32, random_on_device
from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from prefill_service.kernels.keep_highest import keep_highest
from prefill_service.ranking.select import select_positions
from shared.errors import InternalError
from shared.model.attention import PrefillAttention, TorchAttention
from shared.model.config import ModelConfig
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.plain_attention import PlainKernel
from shared.model.probe import AttentionChoice
from shared.model.random import random_config
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams

SLACK = 2.0
"""A path may be this much further off float32 than PyTorch in its own type, where that is more:
whole models in 16 bits differ by rounding alone."""

LIMITS = {torch.float32: 1e-3, torch.bfloat16: LIMIT}
"""Errors that are always allowed, by type."""

STRICT_CASES = 2
"""Leading cases that a GPU also runs in float32, where nothing is put down to rounding; their heads
are small enough for kernels that are made for 16 bits."""

_SCORE_SHARE = 0.99
"""Least share of the best choice's score that a choice must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCase:
    """One prompt of one small model."""

    family: str
    group: int
    kv_heads: int
    head_dim: int
    tokens: int
    chunk_tokens: int
    pruning_layer: int
    keep_rate: float
    kv_select: KvSelect = KvSelect.HEAD

    @property
    def label(self) -> str:
        """In a line."""
        return (
            f"{self.family} {self.kv_heads} KV heads of {self.group}, size {self.head_dim}, "
            f"{self.tokens} tokens in {self.chunk_tokens}, lp {self.pruning_layer}, "
            f"keep {self.keep_rate:g} {self.kv_select.value}"
        )

    @property
    def config(self) -> ModelConfig:
        """A model of 6 layers."""
        heads = self.group * self.kv_heads
        width = heads * self.head_dim
        made = random_config(
            self.family, hidden_size=width, num_heads=heads, num_kv_heads=self.kv_heads
        )
        return replace(made, head_dim=self.head_dim, max_position=8192, tie_embeddings=False)

    @property
    def params(self) -> PruningParams:
        """How it is pruned."""
        return PruningParams(
            pruning_layer=self.pruning_layer,
            deferred_layers=2,
            aggregation_window=2,
            keep_rate=self.keep_rate,
            kv_select=self.kv_select,
        )


def _case(  # noqa: PLR0913, PLR0917  a row of a table
    family: str, group: int, kv_heads: int, head_dim: int, tokens: int, lp: int, keep: float
) -> PassCase:
    return PassCase(
        family=family,
        group=group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tokens=tokens,
        chunk_tokens=tokens // 2 + 1 if tokens % 2 else 4096,
        pruning_layer=lp,
        keep_rate=keep,
        kv_select=list(KvSelect)[tokens % 3],
    )


PASS_CASES = (
    _case("llama", 3, 3, 64, 999, 3, 0.2),
    _case("qwen2", 7, 2, 64, 2048, 3, 0.3),
    _case("llama", 4, 8, 128, 2500, 2, 0.1),
    _case("qwen2", 6, 2, 128, 1025, 0, 0.4),
    _case("qwen3", 2, 4, 128, 777, 5, 0.25),
    _case("mistral", 1, 4, 64, 130, 4, 0.5),
    _case("llama", 8, 1, 256, 640, 3, 0.2),
    _case("llama", 5, 2, 32, 1500, 1, 1.0),
)
"""Heads, lengths around blocks, pruning layers at both ends, keep-all."""


def plain_choice() -> AttentionChoice:
    """The CUDA path with attention that any device runs in any type, one prompt a call."""
    ranges = (KernelRange(up_to=None, kernel=PlainKernel()),)
    return AttentionChoice(backend=DeviceAttention(ranges), rejected=())


def check_pass(
    case: PassCase,
    *,
    choice: AttentionChoice,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Errors of the device path and of PyTorch in the same type, both from float32.

    Raises:
        InternalError: the device path is further off than it may be, or chose badly.
    """
    model = random_on_device(case.config, device=device, dtype=dtype)
    exact = in_float32(model)
    generator = torch.Generator().manual_seed(case.tokens)
    ids = torch.randint(3, 512, (case.tokens,), generator=generator).tolist()
    ours = _run(model, ids, case, attention=choice.backend)
    slow = _run(model, ids, case, attention=TorchAttention())
    wanted = _run(exact, ids, case, attention=TorchAttention())
    found: dict[str, Any] = {
        "ours": errors_of(exact, ids, ours),
        "torch": errors_of(exact, ids, slow),
    }
    for name, error in found["ours"].items():
        allowed = max(LIMITS[dtype], SLACK * found["torch"][name])
        if not error <= allowed:
            raise InternalError(
                f"{case.label}: {name} {error:.3g} off float32, {allowed:.3g} is allowed "
                f"(PyTorch in {dtype}: {found['torch'][name]:.3g}): the CUDA path is wrong on this "
                "device, so its speed means nothing; report this"
            )
    scores_C = wanted.output.scores_C
    if scores_C is not None:
        found["score_held"] = _score_held(ours, wanted, scores_C)
        found["same_kept"] = _shared(ours.output.kept_N, wanted.output.kept_N)
        if not found["score_held"] >= _SCORE_SHARE:
            raise InternalError(
                f"{case.label}: the kept tokens hold {found['score_held']:.4f} of the score that "
                f"they could hold, {_SCORE_SHARE} is asked for: the CUDA path chooses wrongly"
            )
    return found


def check_choice(*, rows: int, candidates: int, kept: int, device: torch.device) -> None:
    """Compares the selection kernel with its slow twin on scores full of ties.

    Raises:
        InternalError: they differ in any place.
    """
    generator = torch.Generator(device).manual_seed(candidates)
    scores_RC = torch.randn((rows, candidates), generator=generator, device=device)
    scores_RC = (scores_RC * 50).round() / 50
    scores_RC[:, ::97] = torch.nan
    rules: dict[str, Any] = {
        "prompt_tokens": candidates + 8,
        "kept_tokens": kept,
        "protect_first": True,
    }
    ours, slow = keep_highest(scores_RC, **rules), select_positions(scores_RC, **rules)
    if not torch.equal(ours, slow):
        raise InternalError(
            f"{kept} of {candidates} positions: {int((ours != slow).sum())} places differ from the "
            "slow twin: the selection kernel is wrong on this device; report this"
        )


def _run(
    model: Transformer, ids: list[int], case: PassCase, *, attention: PrefillAttention
) -> CapturedPrefill:
    return capture_prefill(
        model,
        attention=attention,
        token_ids=ids,
        params=case.params,
        chunk_tokens=case.chunk_tokens,
    )


def errors_of(exact: Transformer, ids: list[int], ran: CapturedPrefill) -> dict[str, float]:
    """How far logits and KV are off float32, given the tokens that were kept; by length."""
    logits_V, kv = _with_kept(exact, ids, ran)
    errors = {"logits": relative_distance(ran.output.logits_V, logits_V.double())}
    keys, values = 0.0, 0.0
    for layer, (k_TGD, v_TGD) in enumerate(kv):
        positions_RN = _slots(ran, layer)
        index = positions_RN.t()[:, :, None].expand(-1, k_TGD.shape[1], k_TGD.shape[2])
        k_NGD, v_NGD = ran.kv.layer(layer)
        keys = max(keys, relative_distance(k_NGD, k_TGD.gather(0, index).double()))
        values = max(values, relative_distance(v_NGD, v_TGD.gather(0, index).double()))
    return errors | {"keys": keys, "values": values}


def _slots(ran: CapturedPrefill, layer: int) -> Tensor:
    """Rows of the reference's KV of a layer that the run's cache holds, int64 [R, N]."""
    positions_RN = ran.kv.layer_positions(layer).to(ran.output.kept_N.device)
    if layer <= ran.plan.params.pruning_layer or not ran.plan.summary.pruned:
        return positions_RN
    return torch.searchsorted(ran.output.kept_N, positions_RN)


@torch.inference_mode()
def _with_kept(
    model: Transformer, ids: list[int], ran: CapturedPrefill
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Logits [V] and every layer's KV with the tokens that a run kept, the long way."""
    kept_N, lp = ran.output.kept_N, ran.plan.params.pruning_layer
    positions_T = torch.arange(len(ids), device=model.device)
    rope = model.rope(positions_T, context_tokens=len(ids))
    x_TE = model.embed(torch.tensor(ids, device=model.device))
    attention, kv = TorchAttention(), []
    for index, layer in enumerate(model.layers):
        q, k, v = layer.qkv(x_TE, rope)
        kv.append((k, v))
        x_TE = layer.finish(x_TE, attention.causal(q, k, v))
        if index == lp and ran.plan.summary.pruned:
            x_TE, rope = x_TE[kept_N], rope.rows(kept_N)
    return model.logits(x_TE[-1:])[0], kv


def _score_held(ours: CapturedPrefill, wanted: CapturedPrefill, scores_C: Tensor) -> float:
    """Score of our choice over that of the best, by the reference's scores."""
    candidates = scores_C.shape[0]
    ours_N, best_N = ours.output.kept_N, wanted.output.kept_N
    held = scores_C[ours_N[ours_N < candidates]].double().sum()
    return float(held / scores_C[best_N[best_N < candidates]].double().sum())


def _shared(first_N: Tensor, second_N: Tensor) -> float:
    """Share of equal positions."""
    return float(torch.isin(first_N, second_N).float().mean())
