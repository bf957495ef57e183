"""Grammars: what is allowed next, what is refused, what is remembered, what hostile ones cost."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from shared.errors import InvalidRequestError
from shared.grammar.compiler import MAX_GRAMMAR_BYTES, GrammarCompiler
from shared.grammar.matcher import TOO_COMPLEX, GrammarMatcher
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.thread_guard import no_thread_left
from tests.support.tiny_tokenizer import write_tokenizer_folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def compiler(tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    with closing(GrammarCompiler(tokenizer)) as made:
        yield made


def grammar(schema: dict[str, Any]) -> str:
    """The grammar of a schema."""
    return json.dumps({"grammars": [{"json_schema": schema}]})


def allowed_text(tokenizer: Tokenizer, matcher: GrammarMatcher) -> set[str]:
    """Tokens that may come next."""
    ids = np.flatnonzero(matcher.allowed(tokenizer.vocab_size))
    return {tokenizer.decode([i], skip_special_tokens=False) for i in ids.tolist()}


def test_first_later_and_last_tokens(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.matcher(grammar({"enum": [12, True]}))
    assert allowed_text(tokenizer, matcher) == {"1", "t"}
    (one,) = tokenizer.encode("1")
    (two,) = tokenizer.encode("2")
    assert matcher.fork().follow([one]) is None
    assert matcher.follow([two]) == 0
    matcher.accept(one)
    assert allowed_text(tokenizer, matcher) == {"2"}
    matcher.accept(two)
    assert set(np.flatnonzero(matcher.allowed(tokenizer.vocab_size))) == set(tokenizer.eos_ids)


def test_end_of_text_only_where_the_grammar_may_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.matcher(grammar({"type": "integer", "minimum": 0}))
    (end,) = tokenizer.eos_ids
    assert not matcher.allowed(tokenizer.vocab_size)[end]
    matcher.accept(tokenizer.encode("7")[0])
    assert matcher.allowed(tokenizer.vocab_size)[end]


def test_asking_changes_nothing(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.matcher(grammar({"type": "integer"}))
    first = matcher.allowed(tokenizer.vocab_size)
    for _ in range(3):
        assert (matcher.allowed(tokenizer.vocab_size) == first).all()


def test_two_sides_go_the_same_way(tokenizer: Tokenizer) -> None:
    """A prefill and a decode worker each have a compiler of their own."""
    schema = grammar({"type": "object", "properties": {"a": {"type": "string"}}})
    one, two = (GrammarCompiler(tokenizer).matcher(schema) for _ in range(2))
    choose = random.Random(1)
    for _ in range(60):
        allowed = one.allowed(tokenizer.vocab_size)
        assert (allowed == two.allowed(tokenizer.vocab_size)).all()
        token_id = int(choose.choice(list(np.flatnonzero(allowed))))
        if token_id in tokenizer.eos_ids:
            break
        one.accept(token_id)
        two.accept(token_id)


def test_a_fork_goes_its_own_way(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.matcher(grammar({"type": "integer", "minimum": 0}))
    matcher.accept(tokenizer.encode("7")[0])
    fresh = compiler.matcher(grammar({"type": "integer", "minimum": 0}))
    (end,) = tokenizer.eos_ids
    assert not fresh.allowed(tokenizer.vocab_size)[end]


def test_an_embedding_with_more_rows_than_tokens(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    allowed = compiler.matcher(grammar({"const": 1})).allowed(tokenizer.vocab_size + 100)
    assert allowed.shape == (tokenizer.vocab_size + 100,)
    assert not allowed[tokenizer.vocab_size :].any()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "thing"}, "thing"),
        ({"type": "string", "pattern": "(a"}, "regex"),
        ({"type": "string", "format": "nonsense"}, "nonsense"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$ref": "http://127.0.0.1:1/schema"}, "http://127.0.0.1:1/schema"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
        ({"$ref": "#"}, "no answer"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_what_cannot_be_enforced_is_refused_by_name(
    compiler: GrammarCompiler, schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        compiler.matcher(grammar(schema))
    assert caught.value.error_code == "invalid_json_schema"


def test_a_grammar_that_grows_too_ambiguous_says_so(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    """It compiles, and passes the limits at its second token."""
    many = [
        {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^a*{i}$"}}}
        for i in range(3000)
    ]
    matcher = compiler.matcher(grammar({"anyOf": many}))
    matcher.accept(tokenizer.encode("{")[0])
    with pytest.raises(InvalidRequestError) as caught:
        matcher.allowed(tokenizer.vocab_size)
    assert caught.value.error_code == TOO_COMPLEX


def test_a_token_that_is_not_allowed_breaks_the_matcher_quietly(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.matcher(grammar({"const": 1}))
    matcher.accept(tokenizer.encode("x")[0])
    with pytest.raises(InvalidRequestError):
        matcher.allowed(tokenizer.vocab_size)


def test_the_cache_is_bounded(compiler: GrammarCompiler) -> None:
    for value in range(100):
        compiler.matcher(grammar({"const": value}))
    assert compiler.num_cached == 64
    large = "x" * (MAX_GRAMMAR_BYTES - 100)
    for value in range(6):
        compiler.matcher(grammar({"const": f"{value}", "title": large}))
    assert compiler.num_cached <= 4


def test_a_long_grammar_is_refused_unread(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError, match="characters"):
        compiler.matcher("x" * (MAX_GRAMMAR_BYTES + 1))


async def test_its_thread_ends_with_it_and_closing_twice_is_fine(compiler: GrammarCompiler) -> None:
    with no_thread_left():
        await compiler.compile(grammar({"const": 1}))
        compiler.close()
        compiler.close()


async def test_compiling_beside_the_loop(compiler: GrammarCompiler) -> None:
    matcher = await compiler.compile(grammar({"const": 1}))
    assert matcher.allowed(300).any()
    with pytest.raises(InvalidRequestError):
        await compiler.compile("start: nonsense")
