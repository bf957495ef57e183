"""The report of `tandem inspect prune`."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from prefill_service.engine.inspect import inspect_prune
from shared.errors import InvalidRequestError
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams

PARAMS = PruningParams(
    pruning_layer=3, deferred_layers=2, aggregation_window=2, keep_rate=0.25, bypass_below=10**6
)
IDS = torch.randint(3, 512, (100,), generator=torch.Generator().manual_seed(4)).tolist()


def report(model: Transformer, params: PruningParams, ids: list[int] = IDS) -> dict[str, Any]:
    return inspect_prune(
        model, attention=TorchAttention(), token_ids=ids, params=params, chunk_tokens=64
    )


@pytest.mark.parametrize(
    ("kv_select", "modes", "rows"),
    [
        (KvSelect.HEAD, ["head", "head", "shared", "shared"], [2, 2, 1, 1]),
        (KvSelect.LAYER, ["layer", "layer", "shared", "shared"], [1, 1, 1, 1]),
        (KvSelect.SHARED, ["shared"] * 4, [1, 1, 1, 1]),
    ],
)
def test_keys_modes_and_rows(
    tiny_model: Transformer, kv_select: KvSelect, modes: list[str], rows: list[int]
) -> None:
    ours = report(tiny_model, replace(PARAMS, kv_select=kv_select))
    assert list(ours) == [
        "prompt_tokens",
        "kept",
        "layers",
        "next_position",
        "first_token_id",
        "kv_bytes",
        "seconds",
    ]
    assert [layer["layer"] for layer in ours["layers"]] == list(range(6))
    assert [layer["mode"] for layer in ours["layers"]] == ["full", "full", *modes]
    assert [len(layer["positions"]) for layer in ours["layers"]] == [1, 1, *rows]
    assert ours["layers"][0]["positions"] == [list(range(100))]
    assert ours["layers"][5]["positions"] == [ours["kept"]]
    assert ours["prompt_tokens"] == ours["next_position"] == 100
    assert len(ours["kept"]) == 25
    assert ours["kv_bytes"] == 2 * 2 * 16 * 4 * (2 * 100 + 4 * 25)
    assert json.loads(json.dumps(ours)) == ours


def test_a_short_prompt_is_pruned_all_the_same(tiny_model: Transformer) -> None:
    assert len(report(tiny_model, PARAMS, IDS[:12])["kept"]) == 9


def test_keep_all(tiny_model: Transformer) -> None:
    ours = report(tiny_model, replace(PARAMS, keep_rate=1.0))
    assert ours["kept"] == list(range(100))
    assert {layer["mode"] for layer in ours["layers"]} == {"full"}


def test_empty_prompt(tiny_model: Transformer) -> None:
    with pytest.raises(InvalidRequestError):
        report(tiny_model, PARAMS, [])
