"""Greedy tokens of the recorded cases, by both engines' own paths on the embedded model.

`reference_cases.json` was made by an independent slow implementation of both methods.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.solo import solo_row
from shared.model.transformer import Transformer
from shared.model.weights import load_folder
from shared.types.methods import Aggregation, KvSelect, PruningParams, SparsityParams
from tests.support.decode_rows import advance
from tests.support.pair import assert_same_tokens, first_token, hand_over, prefill, top2_gap

CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("reference_cases.json").read_text()
)["cases"]


@pytest.fixture(scope="module")
def model(smollm2_dir: Path) -> Transformer:
    return load_folder(smollm2_dir)


def pruning_of(case: dict[str, Any]) -> PruningParams:
    given = case["prefill"]
    return PruningParams(
        pruning_layer=given.get("lp", 14),
        keep_rate=given["keep"],
        aggregation_window=given["n"],
        deferred_layers=given["m"],
        observation_window=given["W"],
        pool_kernel=given["pool"],
        aggregation=Aggregation(given["agg"]),
        kv_select=KvSelect(given["kv_select"]),
        min_keep=given.get("min_keep", 0),
        protect_first=bool(given.get("protect_first", 0)),
    )


def sparsity_of(case: dict[str, Any]) -> SparsityParams:
    given = case["decode"]
    assert given["page_size"] == 16
    assert given["force_page_0"]
    return SparsityParams(
        full_layers=tuple(given["full_layers"]),
        page_budget=given["page_budget"],
        recency_pages=given["recency_pages"],
    )


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_greedy_tokens(model: Transformer, case: dict[str, Any]) -> None:
    captured = prefill(model, case["token_ids"], pruning_of(case))
    cache, row = solo_row(
        model,
        prompt=hand_over(captured),
        first_token=first_token(captured),
        sparsity=sparsity_of(case),
        max_tokens=len(case["greedy_tokens"]),
    )
    assert row.position == case["next_position"] == len(case["token_ids"])
    runner = DecodeRunner(model, cache, attention=TorchDecodeAttention())
    gaps = [top2_gap(captured.output.logits_V)]
    while len(row.generated) < len(case["greedy_tokens"]):
        gaps.append(top2_gap(advance(runner, [row])[0]))
    assert_same_tokens(row.generated, gaps, case["greedy_tokens"])
