"""Recorded requests: reading a trace, its moments, and the parts that its prompts share."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.load.prompts import WORDS, PromptMaker, Word
from loadtest.load.schedule import schedule_of
from loadtest.load.settings import LoadSettings
from loadtest.load.trace import BLOCK_TOKENS, read_trace
from shared.errors import ConfigError

WORD_TOKENS = tuple(Word(f" {word}", (index, index + 100)) for index, word in enumerate(WORDS))


def row(timestamp: float, prompt: int, answer: int, *blocks: int) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "input_length": prompt,
        "output_length": answer,
        "hash_ids": list(blocks),
    }


def written(folder: Path, *rows: Any) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return file


def settings_for(folder: Path, trace: Path, **fields: Any) -> LoadSettings:
    return LoadSettings(host="http://h", out=folder, workload="trace", trace=trace, **fields)


def test_requests_come_in_order_from_the_first_one_on(tmp_path: Path) -> None:
    file = written(tmp_path, row(9000, 5, 2), row(7000, 600, 3, 1, 2), row(17_000, 5, 2))
    rows = read_trace(file, seconds=10)
    assert [(r.due_s, r.prompt_tokens, r.answer_tokens) for r in rows] == [(0, 600, 3), (2, 5, 2)]
    assert rows[0].blocks == (1, 2)


def test_prompts_share_what_the_trace_says_and_nothing_else(tmp_path: Path) -> None:
    long = 2 * BLOCK_TOKENS + 100
    file = written(
        tmp_path,
        row(0, long, 4, 7, 8, 9),
        row(1, long, 4, 7, 8, 5),
        row(2, 40, 4, 9),
        row(3, 40, 4),
    )
    schedule = schedule_of(settings_for(tmp_path, file))
    assert [arrival.due_s for arrival, _ in schedule] == [0, 0.001, 0.002, 0.003]
    assert {request.kind.name for _, request in schedule} == {"trace"}
    maker = PromptMaker(WORD_TOKENS, seed=2)
    first, second, third, alone = (maker.make(request).token_ids for _, request in schedule)
    assert [len(ids) for ids in (first, second, third, alone)] == [long, long, 40, 40]
    both = 2 * BLOCK_TOKENS
    assert first[:both] == second[:both]
    assert first[both : both + 20] != second[both : both + 20]
    assert first[both : both + 40] == third != alone
    assert first[:BLOCK_TOKENS] != first[BLOCK_TOKENS:both]
    assert set(maker.make(schedule[0][1]).text.split()) <= set(WORDS)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {},
        {"timestamp": 0, "input_length": 1},
        row(0, 0, 1),
        row(0, 1, 0),
        {**row(0, 1, 1), "input_length": "many"},
        {**row(0, 1, 1), "hash_ids": ["x"]},
        row(0, BLOCK_TOKENS + 1, 1, 7),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, wrong: Any) -> None:
    file = written(tmp_path, row(0, 1, 1), wrong)
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2 "):
        read_trace(file, seconds=10)


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none", seconds=10)
    with pytest.raises(ConfigError, match="is empty"):
        read_trace(written(tmp_path), seconds=10)


def test_a_trace_needs_its_workload_and_has_its_own_moments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="together"):
        LoadSettings(host="http://h", out=tmp_path, trace=tmp_path)
    with pytest.raises(ConfigError, match="together"):
        LoadSettings(host="http://h", out=tmp_path, workload="trace")
    for fields in ({"stages": "1:1"}, {"closed_users": 2}):
        with pytest.raises(ConfigError, match="own moments"):
            settings_for(tmp_path, tmp_path, **fields)
    assert settings_for(tmp_path, tmp_path).to_json()["trace"] == str(tmp_path)
