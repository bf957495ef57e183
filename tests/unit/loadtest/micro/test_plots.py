"""Pictures of the benches' results: what is read, what is drawn, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from loadtest.micro import plots
from loadtest.micro.plot_figures import step_by_context, ttft_by_length
from loadtest.micro.plot_points import MeasuredPoints, read_results
from loadtest.micro.plots import draw_results
from shared.errors import ConfigError

# Recorded on an H200 and cut down to what is read, with a peer's arm of each kind.
FACTS = {"device": "NVIDIA H200", "commit": "eae9842cc"}
PREFILL = FACTS | {
    "benchmark": "prefill_pass",
    "shape": "llama-3.1-8b",
    "tokens": {
        "10000": {
            "arms": {
                "full": {"seconds": {"median": 0.2613, "min": 0.2532, "max": 0.2641}},
                "claa 10 %": {"seconds": {"median": 0.1426, "min": 0.1411, "max": 0.1478}},
                "transformers (cudnn)": {
                    "seconds": {"median": 0.3161, "min": 0.3141, "max": 0.3183}
                },
            }
        },
        "32768": {
            "arms": {
                "full": {"seconds": {"median": 1.1607, "min": 1.15, "max": 1.17}},
                "claa 10 %": {"seconds": {"median": 0.615, "min": 0.61, "max": 0.62}},
            }
        },
    },
}
DECODE = FACTS | {
    "benchmark": "decode_step",
    "cases": {
        "r1-qwen-1.5b 64 x 18432": {
            "step_ms": {
                "dense": {"median": 9.7019, "min": 9.6846, "max": 9.7364},
                "delta": {"median": 3.9239, "min": 3.9156, "max": 3.9424},
            },
            "vllm": {"used": True, "step_ms": {"median": 9.82, "min": 9.8, "max": 9.9}},
            "errors": {},
        },
        "r1-qwen-1.5b 64 x 4096": {
            "step_ms": {"dense": {"median": 3.7597, "min": 3.7346, "max": 3.7898}},
            "vllm": {"used": False, "reason": "not installed"},
        },
        "llama-3.1-8b 1 x 32768": {"failed": "no memory"},
    },
}
GENERATION = FACTS | {
    "benchmark": "generation",
    "shape": "r1-qwen-1.5b",
    "batch": 64,
    "contexts": [144, 272, 400],
    "runs": {
        "dense": [{"step_ms": [2.6, 2.7, 2.8]}, {"step_ms": [2.8, 2.7, 3.0]}],
        "delta": [{"step_ms": [2.5, 2.6, 2.7]}],
    },
}
PANEL = "r1-qwen-1.5b, batch 64"


def written(folder: Path, **results: dict[str, Any]) -> list[Path]:
    paths = []
    for name, result in results.items():
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(result))
    return paths


@pytest.fixture
def found(tmp_path: Path) -> MeasuredPoints:
    return read_results(written(tmp_path, a=PREFILL, b=DECODE, c=GENERATION))


def test_times_are_read_in_milliseconds_with_their_spread(found: MeasuredPoints):
    arms = found.ttft["llama-3.1-8b"]
    assert list(arms) == ["full", "claa 10 %", "transformers (cudnn)"]
    assert list(arms["full"]) == [10_000, 32_768]
    first = arms["claa 10 %"][10_000]
    assert (first.median, first.low, first.high) == pytest.approx((142.6, 141.1, 147.8))


def test_cases_of_one_shape_and_batch_are_one_panel_and_peers_are_arms(found: MeasuredPoints):
    assert found.panels() == [PANEL]
    arms = found.steps[PANEL]
    assert list(arms) == ["dense", "delta", "vllm"]
    assert sorted(arms["dense"]) == [4096, 18_432]
    assert list(arms["vllm"]) == [18_432]


def test_a_course_has_the_spread_of_its_runs(found: MeasuredPoints):
    course = found.courses[PANEL]
    first = course["dense"][144]
    assert (first.median, first.low, first.high) == pytest.approx((2.7, 2.6, 2.8))
    assert list(course["delta"]) == [144, 272, 400]


def test_the_later_file_counts(tmp_path: Path):
    again = {
        "seconds": {"median": 0.2, "min": 0.2, "max": 0.2},
    }
    later = PREFILL | {"tokens": {"10000": {"arms": {"full": again}}}}
    arms = read_results(written(tmp_path, a=PREFILL, b=later)).ttft["llama-3.1-8b"]
    assert arms["full"][10_000].median == 200.0
    assert arms["full"][32_768].median == pytest.approx(1160.7)


def test_a_file_of_two_benches_and_other_weights(tmp_path: Path):
    both = {"prefill": PREFILL | {"weights": "uniform"}, "decode": DECODE}
    found = read_results(written(tmp_path, both=both))
    assert list(found.ttft) == ["llama-3.1-8b, uniform weights"]
    assert found.panels() == [PANEL]


def test_every_arm_is_a_line_with_its_points(found: MeasuredPoints):
    drawn = ttft_by_length(found)
    assert drawn is not None
    (panel,) = drawn.axes
    handles, labels = panel.get_legend_handles_labels()
    assert labels == ["full", "claa 10 %", "transformers (cudnn)"]
    assert isinstance(handles[0], ErrorbarContainer)
    line = handles[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [10_000, 32_768]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([261.3, 1160.7])
    assert drawn.get_supxlabel() == "NVIDIA H200, eae9842"
    drawn = step_by_context(found)
    assert drawn is not None
    (panel,) = drawn.axes
    _, labels = panel.get_legend_handles_labels()
    assert sorted(labels) == [
        "delta",
        "delta, one context",
        "dense",
        "dense, one context",
        "vllm",
    ]
    assert panel.get_ylim()[1] > 9.9


def test_pictures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files = written(tmp_path, a=PREFILL, b=DECODE, c=GENERATION)
    out = tmp_path / "new" / "folder"
    plots.main([*map(str, files), "--out", str(out)])
    names = [Path(line).name for line in capsys.readouterr().out.split()]
    assert names == ["ttft-by-length.png", "step-by-context.png"]
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_what_there_is_nothing_of_is_not_drawn(tmp_path: Path):
    (only,) = draw_results(written(tmp_path, a=PREFILL), out=tmp_path)
    assert only.name == "ttft-by-length.png"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"benchmark": "capacity"}, "is no result of prefill_pass, decode_step, generation"),
        ([], "holds no object"),
        ({"benchmark": "decode_step"}, "is not as decode_step writes it"),
        (
            GENERATION | {"contexts": [144]},
            "is not as generation writes it",
        ),
        ({"benchmark": "decode_step", "cases": {}}, "was taken without a GPU"),
        (PREFILL | {"tokens": {}}, "was taken without a GPU"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, result: Any, text: str):
    with pytest.raises(ConfigError, match=text):
        read_results(written(tmp_path, a=result))


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        plots.main(["/nowhere/a.json"])
    assert "cannot be read as JSON" in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="extra eval"):
        draw_results([], out=Path())


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (file,) = written(tmp_path, a=PREFILL)
    with pytest.raises(ConfigError, match="cannot take pictures"):
        draw_results([file], out=file)
