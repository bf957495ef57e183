"""Shortcuts of the runner against the long way through the same layers, by family and RoPE kind.

The long way computes every row of the pruning layer and of the last layer, and gathers outputs.

Shapes: T tokens, N kept tokens.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prefill_service.engine.inspect import capture_prefill
from shared.model.attention import TorchAttention
from shared.model.random import random_config, random_model
from shared.model.rope_config import RopeConfig, RopeKind
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams

TOKENS = 150
PARAMS = PruningParams(pruning_layer=2, deferred_layers=1, aggregation_window=2, keep_rate=0.3)
ROPES = {
    "default": RopeConfig(),
    "dynamic": RopeConfig(kind=RopeKind.DYNAMIC, factor=4.0, original_max_position=64),
    "linear": RopeConfig(kind=RopeKind.LINEAR, factor=4.0, original_max_position=64),
    "llama3": RopeConfig(kind=RopeKind.LLAMA3, factor=8.0, original_max_position=64),
    "yarn": RopeConfig(kind=RopeKind.YARN, factor=4.0, original_max_position=64),
}


def long_way(model: Transformer, ids: list[int], *, kept_N: Tensor, lp: int) -> Tensor:
    """Logits of the last row with the same kept tokens and no shortcut."""
    positions_T = torch.arange(len(ids))
    rope = model.rope(positions_T, context_tokens=len(ids))
    x_TE = model.embed(torch.tensor(ids))
    attention = TorchAttention()
    for index, layer in enumerate(model.layers):
        q, k, v = layer.qkv(x_TE, rope)
        x_TE = layer.finish(x_TE, attention.causal(q, k, v))
        if index == lp:
            x_TE, rope = x_TE[kept_N], rope.rows(kept_N)
    return model.logits(x_TE)[-1]


@pytest.mark.parametrize("lp", [0, 2, 4, 5])
@pytest.mark.parametrize(
    ("family", "rope"),
    [(family, "default") for family in ("llama", "mistral", "qwen2", "qwen3")]
    + [("llama", kind) for kind in ("dynamic", "linear", "llama3", "yarn")],
)
def test_shortcut_equals_long_way(family: str, rope: str, lp: int) -> None:
    model = random_model(random_config(family, rope=ROPES[rope]), seed=3)
    ids = torch.randint(3, 512, (TOKENS,), generator=torch.Generator().manual_seed(lp)).tolist()
    captured = capture_prefill(
        model,
        attention=TorchAttention(),
        token_ids=ids,
        params=replace(PARAMS, pruning_layer=lp),
        chunk_tokens=64,
    )
    expected = long_way(model, ids, kept_N=captured.output.kept_N, lp=lp)
    torch.testing.assert_close(captured.output.logits_V, expected, atol=1e-4, rtol=0)
