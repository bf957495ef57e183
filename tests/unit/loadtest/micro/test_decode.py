import json
from pathlib import Path

import pytest

from loadtest.micro.decode import bench_decode
from loadtest.micro.decode_peer import TransformersPeer
from loadtest.spread import paired_ratios, spread
from shared.errors import ConfigError, InternalError
from shared.types.page_policies import PagePolicyName


def test_it_reports_all_arms_and_where_they_ran(tiny_model_dir: Path) -> None:
    lines: list[str] = []
    report = bench_decode(
        model=str(tiny_model_dir),
        context=200,
        new_tokens=4,
        page_budget=10,
        repeats=3,
        progress=lines.append,
    )
    assert set(report["arms"]) == {"transformers", "dense", "delta"}
    assert set(report["speedup"]) == {"dense", "delta"}
    assert all(len(arm["seconds"]) == 3 for arm in report["arms"].values())
    for ratio in report["speedup"].values():
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    assert report["sparsity"]["policy"] == "delta"
    assert report["parity"]["equal"]
    assert report["attended"]["dense"] == report["dense"]
    assert report["attended"]["delta"] < report["dense"]
    assert report["hardware"]["cores"] >= 1
    assert report["commit"]
    assert "--context 200" in report["command"]
    assert json.loads(json.dumps(report)) == report
    assert lines[-1].startswith("repeat 3 of 3")


def test_another_policy_is_an_arm_of_its_name(tiny_model_dir: Path) -> None:
    report = bench_decode(
        model=str(tiny_model_dir),
        context=200,
        new_tokens=2,
        page_budget=3,
        policy=PagePolicyName.STREAMING,
        repeats=1,
        progress=lambda _line: None,
    )
    assert set(report["arms"]) == {"transformers", "dense", "streaming"}
    assert report["attended"]["streaming"] < report["dense"]
    assert "--policy streaming" in report["command"]


def test_no_speed_is_claimed_on_wrong_tokens(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: TransformersPeer, steps: int) -> tuple[list[int], list[float], float]:
        return [-1] * steps, [1.0] * steps, 1.0

    monkeypatch.setattr(TransformersPeer, "run", wrong)
    with pytest.raises(InternalError, match="step 0"):
        bench_decode(
            model=str(tiny_model_dir),
            context=60,
            new_tokens=2,
            page_budget=10,
            repeats=1,
            progress=lambda _line: None,
        )


@pytest.mark.parametrize(("context", "new_tokens", "repeats"), [(1020, 5, 1), (0, 5, 1), (9, 5, 0)])
def test_sizes_that_cannot_run_are_refused(
    tiny_model_dir: Path, context: int, new_tokens: int, repeats: int
) -> None:
    with pytest.raises(ConfigError):
        bench_decode(
            model=str(tiny_model_dir),
            context=context,
            new_tokens=new_tokens,
            page_budget=10,
            repeats=repeats,
            progress=lambda _line: None,
        )


def test_ratios_are_taken_within_a_repeat() -> None:
    assert paired_ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == {
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
    }
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
