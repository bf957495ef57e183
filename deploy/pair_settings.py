"""The settings of a pair that is measured: large enough for its requests, and written to a file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.pair.plan import PairPlan
from shared.kv.geometry import KvGeometry
from shared.model.config import ModelConfig

_MARGIN_TOKENS = 256
"""Positions beyond the longest prompt and answer: rows end on whole pages."""
_UNDER_WAY = 3
"""Prompts whose KV is on its way at once: computed, delivered, and adopted."""
_PATIENCE_S = 600.0

Tables = Mapping[str, Mapping[str, Any]]
"""Settings by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSizes:
    """What a pair must hold."""

    longest: int
    """Tokens of the longest prompt and its answer."""
    at_once: int
    """Such requests side by side."""

    @classmethod
    def of(cls, plan: PairPlan) -> "PairSizes":
        """Those of a plan."""
        return cls(longest=plan.longest, at_once=plan.most_at_once)


def pair_tables(
    model: ModelConfig,
    sizes: PairSizes,
    *,
    dtype: str,
    transports: tuple[str, ...],
    profile: str = "",
) -> Tables:
    """Settings by role.

    Args:
        model: shape; its KV decides the sizes.
        sizes: what must fit.
        dtype: of weights and KV.
        transports: best first.
        profile: of both workers; empty: the one that belongs to the model.

    Raises:
        ConfigError: there is no KV cache of that dtype.
    """
    tokens = min(sizes.longest + _MARGIN_TOKENS, model.max_position)
    geometry = KvGeometry(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
    )
    prompt_bytes = model.num_layers * geometry.kv_bytes(tokens)
    on_the_way = min(sizes.at_once, _UNDER_WAY) * prompt_bytes
    both = {"dtype": dtype, "max_model_len": tokens, "transports": list(transports)}
    if profile:
        both["profile"] = profile
    queued = 2 * sizes.at_once * tokens
    return {
        "prefill": {
            **both,
            "queue_tokens": queued,
            "buffer_bytes": on_the_way,
            "sealed_bytes": prompt_bytes,
            "reserve_wait_s": _PATIENCE_S,
        },
        "decode": {
            **both,
            "kv_bytes": (sizes.at_once + 1) * prompt_bytes,
            "slab_bytes": on_the_way,
            "max_batch": sizes.at_once,
        },
        "gateway": {"queue_tokens": queued, "queue_wait_s": _PATIENCE_S},
    }


def write_tables(tables: Tables, path: Path) -> Path:
    """Writes a settings file; every value is a number, a text or a list of these."""
    lines: list[str] = []
    for role, settings in tables.items():
        lines.append(f"[{role}]")
        # JSON writes numbers, texts and lists as TOML does.
        lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
