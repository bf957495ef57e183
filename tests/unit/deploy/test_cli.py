import json

import pytest
from typer.testing import CliRunner

from deploy import cli
from deploy.chat import summary
from deploy.demo import check_answers
from deploy.lists import names_in, numbers_in
from deploy.rest_client import Answer
from shared.config.secrets import mask_secret
from shared.errors import ConfigError, InternalError

runner = CliRunner()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_version_json():
    result = runner.invoke(cli.app, ["version", "--full", "--json"])
    facts = json.loads(result.stdout)
    assert facts["grpcio"] != "absent"
    assert "torch" in facts


def test_config_show_says_where_a_value_comes_from(monkeypatch):
    monkeypatch.setenv("TANDEM_DECODE__MAX_BATCH", "5")
    monkeypatch.setenv("TANDEM_DECODE__REDIS_URL", "redis://u:secret@h/0")
    result = runner.invoke(cli.app, ["config", "show", "--role", "decode", "--origin", "--json"])
    settings = json.loads(result.stdout)["decode"]
    assert settings["max_batch"] == {"value": 5, "origin": "environment TANDEM_DECODE__MAX_BATCH"}
    assert settings["redis_url"]["value"] == "redis://u:***@h/0"
    assert settings["port"]["origin"] == "default"


def test_config_show_prints_a_table_for_all_roles():
    result = runner.invoke(cli.app, ["config", "show", "--origin"])
    assert result.exit_code == 0
    for role in ("gateway", "prefill", "decode", "up"):
        assert role in result.stdout


def test_unknown_role_is_a_config_error():
    result = runner.invoke(cli.app, ["config", "show", "--role", "prefil"])
    assert isinstance(result.exception, ConfigError)


def test_main_turns_errors_into_a_line_and_a_code(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tandem", "config", "show", "--role", "nobody"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 3
    assert capsys.readouterr().err.startswith("error: unknown role")


def test_model_list_json(tmp_path):
    result = runner.invoke(cli.app, ["model", "list", "--cache-dir", str(tmp_path), "--json"])
    (model,) = json.loads(result.stdout)["models"]
    assert model["name"] == "smollm2"
    assert model["folder"] is None


@pytest.mark.parametrize(("text", "masked"), [("redis://h/0", "redis://h/0"), ("plain", "plain")])
def test_texts_without_a_secret_stay(text, masked):
    assert mask_secret(text) == masked


def test_lists_of_numbers():
    assert numbers_in("0,1,2", flag="--to", kind=int, like="1,4") == (0, 1, 2)
    assert numbers_in("0.2,1.0", flag="--keep", kind=float, like="0.2") == (0.2, 1.0)
    for text in ("0,x", "many", "1;4", "", "8,large", "1k"):
        with pytest.raises(ConfigError, match=f"--to cannot be '{text}': .* like 1,4"):
            numbers_in(text, flag="--to", kind=int, like="1,4")


def test_lists_of_names():
    assert names_in("claa, fastkv") == ("claa", "fastkv")
    assert names_in("") == ()


def answer(*, text="yes", kept=10, prompt=100):
    return Answer(
        text=text,
        finish_reason="stop",
        ttft_s=0.5,
        seconds=1.0,
        usage={"completion_tokens": 3},
        report={"kept_tokens": kept, "prompt_tokens": prompt, "tokens_per_s": 4.0},
    )


def test_demo_accepts_a_pruned_and_a_full_answer():
    check_answers({"both": answer(), "full": answer(kept=100)})


@pytest.mark.parametrize(
    "answers",
    [
        {"both": answer(text=" "), "full": answer(kept=100)},
        {"both": answer(kept=100), "full": answer(kept=100)},
        {"both": answer(), "full": answer()},
    ],
)
def test_demo_fails_on_answers_that_are_not_what_it_asked_for(answers):
    with pytest.raises(InternalError):
        check_answers(answers)


def test_chat_summary_is_one_line():
    assert summary(answer()) == (
        "TTFT 500 ms, 4.0 tokens/s, 3 tokens, kept 10 of 100 prompt tokens, stop"
    )


def test_gpus_that_are_no_numbers_are_named() -> None:
    found = CliRunner().invoke(cli.app, ["up", "--prefill-gpus", "x"])
    assert isinstance(found.exception, ConfigError)
    assert "--prefill-gpus cannot be 'x': expected numbers as 0 or 0,1" in str(found.exception)
