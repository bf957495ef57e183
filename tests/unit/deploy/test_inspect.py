"""The inspection commands, through the command line, on the tiny model."""

import json

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from shared.errors import ConfigError, InvalidRequestError

runner = CliRunner()
IDS = [(7 * index) % 500 for index in range(120)]
PRUNE = ["--keep", "0.25", "--lp", "3", "--n", "2", "--m", "1", "--window", "4"]
PRUNE += ["--agg", "rank_max", "--protect-first", "1", "--min-keep", "10"]


@pytest.fixture
def base(tmp_path, tiny_model_dir):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(IDS))
    return ["--model", str(tiny_model_dir), "--token-ids", str(path)]


def invoke(*arguments):
    result = runner.invoke(app, ["inspect", *arguments])
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize("kv_select", ["head", "layer", "shared"])
def test_prune_reports_positions_per_layer(base, kv_select):
    report = json.loads(invoke("prune", *base, *PRUNE, "--kv-select", kv_select, "--json"))
    assert set(report) == {
        "prompt_tokens", "kept", "layers", "next_position", "first_token_id", "kv_bytes", "seconds",
    }  # fmt: skip
    assert report["prompt_tokens"] == report["next_position"] == 120
    assert len(report["kept"]) == 30
    assert report["kept"] == sorted(set(report["kept"]))
    assert report["kept"][0] == 0
    assert report["kept"][-4:] == [116, 117, 118, 119]
    modes = [layer["mode"] for layer in report["layers"]]
    assert modes == ["full", *[kv_select] * 3, "shared", "shared"]
    rows = [len(layer["positions"]) for layer in report["layers"]]
    assert rows == [1, *[2 if kv_select == "head" else 1] * 3, 1, 1]


def test_protected_ranges_are_kept(base):
    flags = [*PRUNE, "--protect", "40:45", "--protect", "60:61"]
    report = json.loads(invoke("prune", *base, *flags, "--json"))
    assert {*range(40, 45), 60} <= set(report["kept"])
    assert len(report["kept"]) == 30


def test_mass_sets_the_kept_count(base):
    shape = PRUNE[2:]
    bounds = ["--min-rate", "0.1", "--max-rate", "0.9"]
    counts = [
        len(json.loads(invoke("prune", *base, *shape, "--mass", mass, *bounds, "--json"))["kept"])
        for mass in ("0.01", "0.5", "1")
    ]
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (12, 108)


@pytest.mark.parametrize(
    ("ranker", "next_position", "modes"),
    [
        ("recency", 120, ["full", *["shared"] * 5]),
        ("fastkv", 120, [*["head"] * 4, "shared", "shared"]),
        ("snapkv", 120, ["head"] * 6),
        ("gemfilter", 30, ["shared"] * 6),
        ("gemfilter-original", 120, ["shared"] * 6),
        ("self-information", 30, ["shared"] * 6),
    ],
)
def test_any_method_that_needs_nothing_else(base, ranker, next_position, modes):
    report = json.loads(invoke("prune", *base, *PRUNE, "--ranker", ranker, "--json"))
    assert [layer["mode"] for layer in report["layers"]] == modes
    assert report["next_position"] == next_position
    assert len(report["kept"]) == (120 if ranker == "snapkv" else 30)
    held = [len(layer["positions"][0]) for layer in report["layers"]]
    assert report["kv_bytes"] == sum(held) * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("kv_rate", "held"), [("0.125", [120, 15, 15, 15, 15, 15]), ("0.5", [120, 60, 60, 60, 30, 30])]
)
def test_caches_may_have_a_rate_of_their_own(base, kv_rate, held):
    flags = [*PRUNE, "--kv-select", "layer", "--kv-rate", kv_rate]
    report = json.loads(invoke("prune", *base, *flags, "--json"))
    assert [len(layer["positions"][0]) for layer in report["layers"]] == held
    assert len(report["kept"]) == 30


def test_methods_that_need_more_are_refused(base):
    for ranker, says in (("oracle", "evaluations"), ("speculative", "draft"), ("clea", "claa")):
        with pytest.raises(ConfigError, match=says):
            invoke("prune", *base, *PRUNE, "--ranker", ranker)
    with pytest.raises(InvalidRequestError, match="protected"):
        invoke("prune", *base, *PRUNE, "--ranker", "gemfilter", "--protect", "0:2")
    with pytest.raises(ConfigError, match="before the main pass"):
        invoke("pages", *base, "--ranker", "gemfilter")


def test_keep_1_keeps_all(base):
    report = json.loads(invoke("prune", *base, "--keep", "1", "--json"))
    assert report["kept"] == list(range(120))


def test_pages_reports_what_each_layer_reads(base):
    flags = ["--full-layers", "0,1,3", "--page-budget", "4", "--recency", "1", "--max-tokens", "5"]
    report = json.loads(invoke("pages", *base, "--keep", "1", *flags, "--json"))
    assert set(report) == {"policy", "roles", "pages", "token_ids", "steps"}
    assert report["pages"]["page_budget"] == 4
    assert len(report["token_ids"]) == 5
    assert [step["position"] for step in report["steps"]] == [120, 121, 122, 123]
    first = report["steps"][0]
    assert set(first) == {
        "position", "layers", "unit", "refreshed", "churn", "attended", "dense",
    }  # fmt: skip
    assert first["layers"]["0"] == list(range(8))
    assert len(first["layers"]["2"]) == 4
    assert first["layers"]["2"][-1] == 7
    assert first["dense"] == 6 * 121
    assert first["attended"] < first["dense"]


def test_first_token_of_pages_is_that_of_prune(base):
    pruned = json.loads(invoke("prune", *base, *PRUNE, "--json"))
    paged = json.loads(invoke("pages", *base, *PRUNE, "--max-tokens", "1", "--json"))
    assert (paged["token_ids"], paged["steps"]) == ([pruned["first_token_id"]], [])


def test_text_prompt_and_tables(tmp_path, tiny_model_dir):
    path = tmp_path / "prompt.txt"
    path.write_text("A prompt of plain text. " * 10)
    base = ["--model", str(tiny_model_dir), "--prompt-file", str(path)]
    assert "next position" in invoke("prune", *base)
    assert "attended" in invoke("pages", *base, "--max-tokens", "3")


def test_mistakes_are_named(base, tmp_path, tiny_model_dir):
    model = ["--model", str(tiny_model_dir)]
    bad = tmp_path / "bad.json"
    bad.write_text('["x"]')
    with pytest.raises(InvalidRequestError, match="exactly one"):
        invoke("prune", *model)
    with pytest.raises(InvalidRequestError, match="JSON array"):
        invoke("prune", *model, "--token-ids", str(bad))
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        invoke("prune", *model, "--prompt-file", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="layer 9"):
        invoke("pages", *base, "--full-layers", "0,9")
    with pytest.raises(InvalidRequestError, match="keep_rate"):
        invoke("prune", *base, "--keep", "1.5")
    with pytest.raises(InvalidRequestError, match="leave one out"):
        invoke("prune", *base, "--keep", "0.5", "--mass", "0.5")
    with pytest.raises(InvalidRequestError, match="protect fewer"):
        invoke("prune", *base, *PRUNE, "--protect", "0:100")
    for text in ("5", "5:", ":5", "a:b", "-1:5"):
        with pytest.raises(ConfigError, match="0:20"):
            invoke("prune", *base, "--protect", text)
