"""An unpruned prefill gives transformers' logits and KV, whatever the chunks."""

from pathlib import Path

import pytest
import torch

from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from shared.model.attention import TorchAttention
from shared.model.random import random_config
from shared.model.random_folder import save_random_model
from shared.model.weights import load_model
from shared.types.methods import PruningParams
from tests.reference.transformers_prefill import transformers_prefill

# A random model has no profile of its own, which the loader says aloud.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def keep_all(folder: Path, ids: list[int], *, chunk: int) -> CapturedPrefill:
    return capture_prefill(
        load_model(str(folder), dtype="float32").model,
        attention=TorchAttention(),
        token_ids=ids,
        params=PruningParams(pruning_layer=2, keep_rate=1.0),
        chunk_tokens=chunk,
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_family(family: str, tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / family, random_config(family), seed=5)
    ids = torch.randint(3, 512, (301,), generator=torch.Generator().manual_seed(1)).tolist()
    logits_V, cache = transformers_prefill(folder, ids)
    for chunk in (64, 512):
        ours = keep_all(folder, ids, chunk=chunk)
        torch.testing.assert_close(ours.output.logits_V, logits_V, atol=1e-3, rtol=0)
        for layer, (keys, values) in enumerate(cache):
            assert ours.kv.layer_positions(layer).tolist() == [list(range(301))]
            torch.testing.assert_close(ours.kv.layer(layer)[0], keys, atol=1e-3, rtol=0)
            torch.testing.assert_close(ours.kv.layer(layer)[1], values, atol=1e-3, rtol=0)


def test_embedded_model(smollm2_dir: Path) -> None:
    ids = torch.randint(100, 49_000, (333,), generator=torch.Generator().manual_seed(2)).tolist()
    logits_V, cache = transformers_prefill(smollm2_dir, ids)
    ours = keep_all(smollm2_dir, ids, chunk=256)
    torch.testing.assert_close(ours.output.logits_V, logits_V, atol=1e-3, rtol=0)
    for layer, (keys, _) in enumerate(cache):
        torch.testing.assert_close(ours.kv.layer(layer)[0], keys, atol=1e-3, rtol=1e-4)
