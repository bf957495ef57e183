"""The prefill benchmark on the tiny model: what it reports, and what it refuses."""

import json
from pathlib import Path

import pytest

from loadtest.micro import prefill
from loadtest.micro.prefill import bench_prefill
from loadtest.micro.prompt import real_prompt
from shared.errors import ConfigError, InternalError
from shared.model.weights import load_model

# The tiny model has no profile of its own, which the loader says aloud.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_report(tiny_model_dir: Path) -> None:
    lines: list[str] = []
    report = bench_prefill(
        model=str(tiny_model_dir), tokens=200, keep=[0.2], lp=3, repeats=2, progress=lines.append
    )
    assert json.loads(json.dumps(report)) == report
    assert list(report["arms"]) == ["transformers", "keep 1", "keep 0.2"]
    assert all(len(arm["runs"]) == 2 for arm in report["arms"].values())
    assert report["arms"]["keep 1"]["kept_tokens"] == 200
    assert report["arms"]["keep 0.2"]["kept_tokens"] == 40
    assert report["arms"]["keep 0.2"]["kv_bytes"] == 2 * 2 * 16 * 4 * (4 * 200 + 2 * 40)
    assert report["parity"]["max_difference"] < 1e-3
    assert report["ratio_to_full"]["keep 1"]["median"] == 1.0
    assert report["ratio_to_transformers"]["keep 0.2"]["min"] > 0
    assert report["pruning"]["pruning_layer"] == 3
    assert report["command"].endswith("--tokens 200 --keep 0.2 --lp 3 --repeats 2")
    assert len(lines) == 4


def test_no_figures_for_a_wrong_prefill(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "TOLERANCE", -1.0)
    with pytest.raises(InternalError, match="our prefill is wrong"):
        bench_prefill(
            model=str(tiny_model_dir),
            tokens=50,
            keep=[],
            lp=None,
            repeats=1,
            progress=lambda _: None,
        )


@pytest.mark.parametrize(("tokens", "repeats"), [(0, 1), (2000, 1), (100, 0)])
def test_sizes_that_do_not_fit(tiny_model_dir: Path, tokens: int, repeats: int) -> None:
    with pytest.raises(ConfigError):
        bench_prefill(
            model=str(tiny_model_dir),
            tokens=tokens,
            keep=[0.5],
            lp=3,
            repeats=repeats,
            progress=lambda _: None,
        )


def test_prompt_is_text_of_the_asked_length(tiny_model_dir: Path) -> None:
    loaded = load_model(str(tiny_model_dir))
    prompt = real_prompt(loaded, tokens=300, room=700)
    assert len(prompt) == 300
    assert len(set(prompt)) > 50
    with pytest.raises(ConfigError, match="do not fit"):
        real_prompt(loaded, tokens=300, room=725)
