"""The prefill of the embedded model against cases of an independent slow implementation.

`reference_cases.json` says how they were made. Positions may differ at near-ties, so overlap
counts; a case without `protect_first` forces nothing.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from shared.model.probe import probe_attention
from shared.model.transformer import Transformer
from shared.model.weights import load_model
from shared.types.methods import Aggregation, KvSelect, PruningParams

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "reference_cases.json").read_text()
)["cases"]


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> Transformer:
    return load_model(str(smollm2_dir), dtype="float32").model


def case_params(prefill: dict[str, Any]) -> PruningParams:
    """A case's parameters; keep-all cases name no pruning layer."""
    return PruningParams(
        pruning_layer=prefill.get("lp", 0),
        keep_rate=prefill["keep"],
        aggregation_window=prefill["n"],
        deferred_layers=prefill["m"],
        observation_window=prefill["W"],
        pool_kernel=prefill["pool"],
        aggregation=Aggregation(prefill["agg"]),
        kv_select=KvSelect(prefill["kv_select"]),
        min_keep=prefill.get("min_keep", 0),
        protect_first=bool(prefill.get("protect_first", 0)),
    )


def overlap(ours: list[int], theirs: list[int]) -> float:
    assert len(ours) == len(theirs)
    return len(set(ours) & set(theirs)) / len(theirs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(smollm2: Transformer, case: dict[str, Any]) -> None:
    captured = capture_prefill(
        smollm2,
        attention=probe_attention(smollm2.device).backend,
        token_ids=case["token_ids"],
        params=case_params(case["prefill"]),
        chunk_tokens=384,
    )
    check_positions(captured, case)
    for token, logit in case["first_logits_top5"]:
        assert float(captured.output.logits_V[token]) == pytest.approx(logit, abs=1e-2)
    top = captured.output.logits_V.topk(5).indices.tolist()
    assert top == [token for token, _ in case["first_logits_top5"]]
    assert top[0] == case["greedy_tokens"][0]


def check_positions(captured: CapturedPrefill, case: dict[str, Any]) -> None:
    assert captured.plan.prompt_tokens == case["next_position"]
    kept = captured.output.kept_N.tolist()
    assert kept == sorted(kept)
    assert overlap(kept, case["kept_after_lp"]) >= 0.99
    for name, heads in case["layer_positions"].items():
        rows = captured.kv.layer_positions(int(name)).tolist()
        rows = rows * len(heads) if len(rows) == 1 else rows
        for ours, theirs in zip(rows, heads, strict=True):
            assert ours == sorted(ours)
            assert overlap(ours, theirs) >= 0.99, f"layer {name}"
