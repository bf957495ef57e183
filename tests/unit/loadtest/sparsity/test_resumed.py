import pytest

from loadtest.sparsity.arms import Arm, dense_arm
from loadtest.sparsity.records import PRUNED, WHOLE, open_store
from loadtest.sparsity.resumed import check_keep_rate
from shared.errors import ConfigError
from shared.types.methods import PruningParams, SparsityParams

PARAMS = SparsityParams(full_layers=(0, 1))


@pytest.mark.parametrize("prefill", [PRUNED, f"{PRUNED}/head"])
def test_prompts_pruned_at_another_rate_do_not_go_on(tmp_path, prefill):
    store = open_store(tmp_path, resume=True)
    arms = [
        dense_arm(),
        Arm(name="delta", params=PARAMS, prefill=WHOLE),
        Arm(name="delta", params=PARAMS, prefill=prefill),
    ]
    check_keep_rate(store, arms, keep_rate=0.4)
    pruning = PruningParams(pruning_layer=2, keep_rate=0.2)
    store.append([arms[-1].fact(run=0, roles=(), pruning=pruning)])
    check_keep_rate(store, arms, keep_rate=0.2)
    check_keep_rate(store, arms[:-1], keep_rate=0.4)
    with pytest.raises(ConfigError, match=r"holds results of keep_rate 0\.2, .* measure 0\.4"):
        check_keep_rate(store, arms, keep_rate=0.4)
