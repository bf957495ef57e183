"""`tandem inspect pages` with every page policy, and its picture."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from shared.errors import ConfigError, InvalidRequestError
from shared.kv.geometry import pages_for
from shared.types.page_policies import PagePolicyName

IDS = [(7 * index) % 500 for index in range(150)]
SMALL = ["--keep", "1", "--page-budget", "4", "--max-tokens", "30"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def base(tmp_path: Path, tiny_model_dir: Path) -> list[str]:
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(IDS))
    return ["--model", str(tiny_model_dir), "--token-ids", str(path)]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["inspect", "pages", *arguments])
    if result.exception:
        raise result.exception
    return result.stdout


def inspect(*arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(invoke(*arguments, "--json"))
    return report


@pytest.mark.parametrize("policy", [name for name in PagePolicyName if name != "dense"])
def test_every_policy_is_inspected_and_drawn(
    base: list[str], tmp_path: Path, policy: PagePolicyName
) -> None:
    png = tmp_path / "strip.png"
    recency = ["--recency", "1"] if "recency_pages" in policy.reads else []
    report = inspect(*base, *SMALL, *recency, "--policy", policy, "--png", str(png))
    assert report["policy"] == report["pages"]["policy"] == policy
    assert png.read_bytes().startswith(PNG)
    assert report["picture"]["file"] == str(png)
    assert 0 <= report["picture"]["layer"] < 6
    attended = sum(step["attended"] for step in report["steps"])
    assert attended < sum(step["dense"] for step in report["steps"])


def test_flags_reach_the_policy(base: list[str]) -> None:
    flags = ["--recency", "1", "--layout", "segment", "--heads", "kv_head", "--refresh", "3"]
    report = inspect(*base, *SMALL, *flags, "--page-mass", "0.9", "--full-layers", "0,1,3")
    assert report["pages"] == {
        "policy": "delta",
        "page_budget": 4,
        "recency_pages": 1,
        "layout": "segment",
        "heads": "kv_head",
        "refresh": 3,
        "mass": 0.9,
    }
    marks = [step["refreshed"] for step in report["steps"]]
    assert marks[:7] == [[1, 3], [], [], [1, 3], [], [], [1, 3]]


def test_dense_reads_everything(base: list[str]) -> None:
    report = inspect(*base, "--keep", "1", "--policy", "dense", "--max-tokens", "3")
    assert [step["attended"] for step in report["steps"]] == [6 * 151, 6 * 152]
    assert report["steps"][0]["layers"]["5"] == list(range(pages_for(151)))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--policy", "quest", "--heads", "kv_head"], "quest does not use it"),
        (["--refresh", "0"], "give 1 to"),
        (["--page-mass", "1.5"], "above 0 and up to 1"),
        (["--page-budget", "3", "--recency", "2"], "below recency_pages"),
    ],
)
def test_flags_that_do_not_fit_are_refused(base: list[str], flags: list[str], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        invoke(*base, "--keep", "1", *flags)


def test_an_unknown_policy_is_answered_with_the_known_ones(base: list[str]) -> None:
    result = CliRunner().invoke(app, ["inspect", "pages", *base, "--policy", "dleta"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--layer", "2"], "give --png"),
        (["--png", "nowhere/strip.png"], "no folder nowhere"),
        (["--png", "strip.png", "--max-tokens", "1"], "--max-tokens 2"),
        (["--png", "strip.png", "--layer", "6"], "layers 0 to 5"),
        (["--png", "."], "cannot be written"),
    ],
)
def test_pictures_that_cannot_be_drawn(
    base: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        invoke(*base, "--keep", "1", *flags)


def test_without_matplotlib_nothing_is_run(
    base: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="matplotlib"):
        invoke(*base, "--png", str(tmp_path / "strip.png"))


def test_the_table_names_slots_and_heads(base: list[str], tmp_path: Path) -> None:
    png = tmp_path / "strip.png"
    shown = invoke(*base, *SMALL, "--policy", "tidal", "--png", str(png), "--layer", "4")
    assert "slots" in shown
    assert "layer 4 is drawn" in shown
