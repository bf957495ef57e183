import pytest
import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.solo import solo_row
from loadtest.sparsity.arms import policy_arms
from loadtest.sparsity.prefills import Prefiller
from loadtest.sparsity.rows import row_batch

FORCED = (7, 11, 13, 17, 19, 23)


@pytest.fixture
def prefiller(setup):
    return Prefiller(
        model=setup.model, attention=setup.attention, base=setup.pruning, keep_rate=0.3
    )


@pytest.mark.parametrize("prefill", ["whole", "pruned", "pruned/head", "pruned/layer"])
@pytest.mark.parametrize("tokens", [159, 160, 161])
def test_a_row_among_others_is_the_row_by_itself(setup, prefiller, prefill, tokens):
    """Arms share the prompt's pages, but no arm may see what another one wrote."""
    ids = torch.randint(0, 256, (tokens,)).tolist()
    (read,) = prefiller.read(ids, [prefill])
    params = [None, *(arm.params for arm in policy_arms(setup.sparsity, names=(), budgets=(3,)))]
    batch = row_batch(
        setup.model, read.tensors, params=params, first_token=FORCED[0], room=len(FORCED)
    )
    together = []
    for target in FORCED[1:]:
        computed = batch.forward()
        together.append(computed.logits_BV)
        computed.accept([target] * len(params))
    for index, own in enumerate(params):
        cache, row = solo_row(
            setup.model,
            prompt=read.tensors,
            first_token=FORCED[0],
            sparsity=own,
            max_tokens=len(FORCED) + 1,
        )
        runner = DecodeRunner(setup.model, cache, attention=TorchDecodeAttention())
        for step, target in enumerate(FORCED[1:]):
            computed = runner.forward([row])
            torch.testing.assert_close(
                computed.logits_BV[0], together[step][index], rtol=1e-4, atol=1e-4
            )
            computed.accept([target])
        assert row.attended == batch.rows[index].attended


def test_prefills_say_which_positions_layers_hold(prefiller):
    ids = torch.randint(0, 256, (200,)).tolist()
    names = ["whole", "pruned/shared", "pruned/layer", "pruned/head"]
    whole, shared, layer, head = prefiller.read(ids, names)
    assert whole.tensors.layer_layouts == (0,) * 6
    assert shared.tensors.layer_layouts == (0, 0, 1, 1, 1, 1)
    assert layer.tensors.layer_layouts[:2] == (0, 0)
    assert len(set(layer.tensors.layer_layouts)) > 2
    assert {tuple(rows.shape) for rows in head.tensors.positions.values()} >= {(2, 60)}
    for pruned in (shared, layer, head):
        assert pruned.kept == 60
        assert pruned.tensors.prompt_tokens == 200
    assert shared.params is not None
    assert whole.params is None
