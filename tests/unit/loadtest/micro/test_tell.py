"""How benchmarks end."""

import argparse
import json

import pytest

from loadtest.micro.tell import Result, tell_result
from shared.errors import ConfigError, InvalidRequestError

FOUND: Result = {"seconds": 1.5, "arms": ["a"]}


@pytest.mark.parametrize(("as_json", "lines"), [(True, 1), (False, 6)])
def test_without_a_table_it_is_json(
    capsys: pytest.CaptureFixture[str], *, as_json: bool, lines: int
) -> None:
    found = tell_result(argparse.ArgumentParser(), lambda: FOUND, as_json=as_json)
    said = capsys.readouterr().out
    assert found == json.loads(said) == FOUND
    assert len(said.splitlines()) == lines


def test_a_table_is_for_readers(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[Result] = []
    tell_result(argparse.ArgumentParser(), lambda: FOUND, as_json=False, table=shown.append)
    assert (shown, capsys.readouterr().out) == ([FOUND], "")
    tell_result(argparse.ArgumentParser(), lambda: FOUND, as_json=True, table=shown.append)
    assert shown == [FOUND]


@pytest.mark.parametrize("kind", [ConfigError, InvalidRequestError])
def test_what_cannot_be_is_an_error_of_the_command(
    capsys: pytest.CaptureFixture[str], kind: type[ConfigError]
) -> None:
    def run() -> Result:
        raise kind("no such shape")

    with pytest.raises(SystemExit) as ended:
        tell_result(argparse.ArgumentParser(prog="bench"), run, as_json=True)
    assert ended.value.code == 2
    assert "bench: error: no such shape" in capsys.readouterr().err
