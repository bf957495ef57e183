"""Kernels of a prompt's pass at the shapes of whole models: float64 references and times.

Shapes: L prompt tokens, W window rows, T kept tokens, H query heads, G KV heads, D head size, C
candidates.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loadtest.micro.kernel_parity import relative_error, require_small
from loadtest.micro.kernel_timing import against_matrix, against_memory, time_on_gpu
from prefill_service.kernels.kept_queries import kept_queries_attention
from prefill_service.kernels.window_mass import window_mass

_CHECKED_QUERIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillShape:
    """A prompt at one layer of a model."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 8
    """Observation window W."""
    kept: int
    """Tokens that keep their queries."""


class PrefillCase:
    """The tensors of a shape, and each kernel on them.

    Args:
        shape: sizes.
        device: where it runs.
        dtype: of queries, keys and values.
    """

    def __init__(self, shape: PrefillShape, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        generator = torch.Generator(device).manual_seed(6)

        def random(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, device=device).to(dtype)

        self.k_LGD, self.v_LGD = (
            random(shape.tokens, shape.kv_heads, shape.head_dim) for _ in range(2)
        )
        self.q_WHD = random(shape.window, shape.heads, shape.head_dim)
        self.q_THD = random(shape.kept, shape.heads, shape.head_dim)
        order = torch.randperm(shape.tokens, generator=generator, device=device)
        self.positions_T = order[: shape.kept].sort().values
        self.mass_GC = torch.full(
            (shape.kv_heads, shape.tokens - shape.window), torch.nan, device=device
        )
        self.lse_WH = self._window_logits().logsumexp(-1).float()

    def window(self, call: int) -> None:
        """Mass of every candidate, both passes over the keys."""
        del call
        window_mass(self.q_WHD, self.k_LGD, mass_GC=self.mass_GC)

    def window_given_lse(self, call: int) -> None:
        """The same with the log-sum-exp of the attention before: one pass."""
        del call
        window_mass(self.q_WHD, self.k_LGD, mass_GC=self.mass_GC, lse_WH=self.lse_WH)

    def kept_queries(self, call: int) -> Tensor:
        """Attention of the kept tokens."""
        del call
        return kept_queries_attention(self.q_THD, (self.k_LGD, self.v_LGD), self.positions_T)

    def window_reference(self) -> Tensor:
        """Mass in float64, [G, C]."""
        candidates = self.mass_GC.shape[1]
        mass_HC = self._window_logits().softmax(-1).sum(0)[:, :candidates]
        return mass_HC.reshape(self.shape.kv_heads, -1, candidates).sum(1)

    def _window_logits(self) -> Tensor:
        """Scaled logits of the window in float64, -inf where unseen, [W, H, L]."""
        shape = self.shape
        q_WGQD = self.q_WHD.double().reshape(shape.window, shape.kv_heads, -1, shape.head_dim)
        logits = torch.einsum("wgqd,lgd->wgql", q_WGQD, self.k_LGD.double()).flatten(1, 2)
        rows = torch.arange(shape.tokens - shape.window, shape.tokens, device=logits.device)
        unseen_WL = torch.arange(shape.tokens, device=logits.device) > rows[:, None]
        scaled_WHL: Tensor = logits * shape.head_dim**-0.5
        return scaled_WHL.masked_fill(unseen_WL[:, None], -torch.inf)


def check_prefill(case: PrefillCase) -> dict[str, float]:
    """Relative errors of every kernel.

    Raises:
        InternalError: one is above the limit.
    """
    wanted_GC = case.window_reference()
    errors = {}
    for name, run in (("window", case.window), ("window_given_lse", case.window_given_lse)):
        case.mass_GC.fill_(torch.nan)
        run(0)
        errors[name] = relative_error(case.mass_GC, wanted_GC)
    out_THD = case.kept_queries(0)
    some = torch.linspace(0, case.shape.kept - 1, min(_CHECKED_QUERIES, case.shape.kept)).long()
    wanted = torch.stack([_query_attention(case, int(t)) for t in some])
    errors["kept_queries"] = relative_error(out_THD[some.to(out_THD.device)], wanted)
    for name, error in errors.items():
        require_small(f"{name} of a prompt of {case.shape.tokens} tokens", error)
    return errors


def _query_attention(case: PrefillCase, t: int) -> Tensor:
    """Attention of one kept token, float64 [H, D]."""
    seen = int(case.positions_T[t]) + 1
    q_GQD = case.q_THD[t].double().reshape(case.shape.kv_heads, -1, case.shape.head_dim)
    k_SGD, v_SGD = case.k_LGD[:seen].double(), case.v_LGD[:seen].double()
    logits_GQS = torch.einsum("gqd,sgd->gqs", q_GQD, k_SGD) * case.shape.head_dim**-0.5
    return torch.einsum("gqs,sgd->gqd", logits_GQS.softmax(-1), v_SGD).flatten(0, 1)


def time_prefill(case: PrefillCase) -> dict[str, Any]:
    """Times of every kernel; the keys of one layer fit the cache, as they do after attention."""
    shape = case.shape
    keys = shape.tokens * shape.kv_heads * shape.head_dim * case.k_LGD.element_size()
    mass = 4 * case.mass_GC.numel()
    seen = int(case.positions_T.sum()) + shape.kept
    return {
        "window": against_memory(time_on_gpu(case.window), moved_bytes=2 * keys + mass),
        "window_given_lse": against_memory(
            time_on_gpu(case.window_given_lse), moved_bytes=keys + mass
        ),
        "kept_queries": against_matrix(
            time_on_gpu(case.kept_queries),
            flops=4 * seen * shape.heads * shape.head_dim,
        ),
    }
