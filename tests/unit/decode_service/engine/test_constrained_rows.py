"""Rows with a grammar in a ragged batch: masked, repeatable, and no matter to their neighbours."""

import json

import pytest
import torch

from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from shared.errors import InternalError
from shared.grammar.compiler import GrammarCompiler
from shared.model.sampler import DrawRow, sample_rows
from shared.model.transformer import Transformer
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import SamplingParams
from tests.support.decode_rows import make_cache, make_prompt, make_runner, place

PLAIN = SamplingParams(temperature=0.0)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ANSWERS = [{"a": a, "b": b} for a in ("x", "yy") for b in (True, False)]


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: object) -> Tokenizer:
    return Tokenizer.from_folder(tiny_model_dir)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def constrain(row: Sequence, grammars: GrammarCompiler, tokenizer: Tokenizer) -> Sequence:
    """The row, whose answer begins with a brace, under the schema."""
    schema = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
    matcher = grammars.matcher(json.dumps({"grammars": [{"json_schema": schema}]}))
    (brace,) = tokenizer.encode("{")
    row.generated[:] = [brace]
    matcher.accept(brace)
    row.matcher = matcher
    return row


def new_row(
    model: Transformer, cache: PagedKvCache, *, seed: int, temperature: float = 0.0
) -> Sequence:
    """A row with a prompt of its own."""
    prompt, _ = make_prompt(model, mode="identity", tokens=20 + seed, kept=10, seed=seed)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    return place(model, cache, prompt, first_token=7, sparsity=None, sampling=sampling)


def run(runner: DecodeRunner, rows: list[Sequence], eos: int) -> None:
    """Steps rows until they end, at most 40 times; they leave at end-of-text."""
    for _ in range(40):
        going = [row for row in rows if row.generated[-1] != eos]
        if not going:
            return
        runner.step(going)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_conform_while_neighbours_are_free(
    tiny_model: Transformer, tokenizer: Tokenizer, grammars: GrammarCompiler, temperature: float
) -> None:
    (eos,) = tokenizer.eos_ids
    alone_cache = make_cache(tiny_model)
    alone = new_row(tiny_model, alone_cache, seed=1)
    run(make_runner(tiny_model, alone_cache), [alone], eos)

    cache = make_cache(tiny_model)
    free = new_row(tiny_model, cache, seed=1)
    bound = [
        constrain(new_row(tiny_model, cache, seed=s, temperature=temperature), grammars, tokenizer)
        for s in (2, 3, 4)
    ]
    run(make_runner(tiny_model, cache), [bound[0], free, *bound[1:]], eos)
    assert free.generated == alone.generated
    for row in bound:
        assert row.generated[-1] == eos
        assert json.loads(tokenizer.decode(row.generated[:-1])) in ANSWERS


def test_a_failed_step_advances_no_matcher(
    tiny_model: Transformer, tokenizer: Tokenizer, grammars: GrammarCompiler
) -> None:
    """The engine repeats a failed step row by row: nobody may have moved twice."""
    (eos,) = tokenizer.eos_ids
    cache = make_cache(tiny_model)
    runner = make_runner(tiny_model, cache)
    twin = constrain(new_row(tiny_model, cache, seed=2), grammars, tokenizer)
    run(runner, [twin], eos)

    row = constrain(new_row(tiny_model, cache, seed=2), grammars, tokenizer)
    broken = new_row(tiny_model, cache, seed=5)
    broken.sampling = SamplingParams(temperature=1.0, logit_bias=((0, float("nan")),))
    for _ in range(4):
        before = list(row.generated)
        with pytest.raises(InternalError):
            runner.step([row, broken])
        with pytest.raises(InternalError):
            runner.step([broken, row])
        assert row.generated == before
        runner.step([row])
    run(runner, [row], eos)
    assert row.generated == twin.generated


def test_plain_rows_of_a_mixed_batch_stay_one_operation(
    monkeypatch: pytest.MonkeyPatch, grammars: GrammarCompiler
) -> None:
    """Two plain greedy rows beside a masked one: drawn together, and as if they were alone."""
    logits = torch.randn(3, 512)
    allowed = grammars.matcher(json.dumps({"grammars": [{"json_schema": SCHEMA}]})).allowed(512)
    rows = [DrawRow(params=PLAIN), DrawRow(params=PLAIN, allowed_V=allowed), DrawRow(params=PLAIN)]
    singly: list[DrawRow] = []

    import shared.model.sampler as module

    one_by_one = module._sample_row

    def counted(logits_V: torch.Tensor, row: DrawRow) -> object:
        singly.append(row)
        return one_by_one(logits_V, row)

    monkeypatch.setattr(module, "_sample_row", counted)
    drawn = [token.token_id for token in sample_rows(logits, rows)]
    assert singly == [rows[1]]
    assert drawn[0] == int(logits[0].argmax())
    assert drawn[2] == int(logits[2].argmax())
    assert allowed[drawn[1]]
