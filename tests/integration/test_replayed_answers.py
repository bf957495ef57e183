"""A real pair that goes on with an answer: the same tokens as without a cut, at every seam."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.clients.decode import DecodeClient
from gateway.clients.events import (
    DecodeCall,
    DecodeFinished,
    FirstTokens,
    PrefillCall,
    Sealed,
    Target,
    Tokens,
)
from gateway.clients.prefill import PrefillClient
from shared.errors import InvalidRequestError
from shared.rpc.channel_pool import ChannelPool
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.handoff import HandoffKey
from shared.types.options import Mode, RequestOptions
from shared.types.sampling import FinishReason, SampledToken, SamplingParams, StopConditions
from tests.support.full_stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEW = 24
"""Tokens of an answer."""
NUMBERS = {"type": "integer", "minimum": 0, "maximum": 999}
SCHEMA = {"type": "array", "minItems": 5, "maxItems": 5, "items": NUMBERS}
GRAMMAR = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
_names = count()


LENGTH = StopConditions(max_tokens=NEW)
FULL = RequestOptions(mode=Mode.FULL)


@dataclass(frozen=True)
class Ask:
    """One way to answer."""

    sampling: SamplingParams
    stop: StopConditions = LENGTH
    grammar: str = ""


PENALISED = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    seed=5,
    presence_penalty=0.5,
    frequency_penalty=0.4,
    repetition_penalty=1.3,
    logprobs=2,
)
ASKS = {
    "greedy": Ask(SamplingParams(temperature=0.0)),
    "seeded": Ask(SamplingParams(temperature=1.0, seed=2**63 + 1)),
    "penalised": Ask(PENALISED),
    "grammar": Ask(
        SamplingParams(temperature=1.0, seed=9),
        stop=StopConditions(max_tokens=40, token_ids=(0, 1)),
        grammar=GRAMMAR,
    ),
    "min_tokens": Ask(
        SamplingParams(temperature=1.0, seed=4),
        stop=StopConditions(max_tokens=NEW, min_tokens=14, token_ids=tuple(range(0, 512, 2))),
    ),
}


@dataclass
class Caller:
    """Speaks to both workers as a gateway does."""

    stack: Stack
    prefill: PrefillClient
    decode: DecodeClient
    prompt: tuple[int, ...]

    async def answer(
        self, ask: Ask, shown: tuple[int, ...] = (), *, claimed: tuple[int, ...] | None = None
    ) -> tuple[list[SampledToken], DecodeFinished]:
        """What comes after `shown`, of which the decode worker is told `claimed`."""
        key, earlier = HandoffKey(f"replay-{next(_names)}", 1), shown[:-1]
        call = PrefillCall(
            handoff=key,
            token_ids=(*self.prompt, *earlier),
            sampling=ask.sampling,
            stop=ask.stop,
            options=FULL,
            targets=(Target("decode", self.stack.decode.address),),
            grammar=ask.grammar,
            forced_first_tokens=shown[-1:],
            earlier_tokens=len(earlier),
        )
        found: list[SampledToken] = []
        address = self.stack.prefill.app.address
        sealed = None
        async for event in self.prefill.prefill(address, call, timeout_s=30):
            if isinstance(event, FirstTokens) and not shown:
                found += event.tokens
            sealed = event if isinstance(event, Sealed) else sealed
        assert sealed is not None
        seen = claimed if claimed is not None else shown or (found[0].token_id,)
        decoding = DecodeCall(
            handoff=key,
            branch=0,
            first_token=seen[-1],
            earlier_tokens=seen[:-1],
            sampling=ask.sampling,
            stop=ask.stop,
            options=FULL,
            grammar=ask.grammar,
        )
        end = None
        try:
            stream = self.decode.decode(self.stack.decode.address, decoding, timeout_s=30)
            async for decoded in stream:
                if isinstance(decoded, Tokens):
                    found += decoded.tokens
                elif isinstance(decoded, DecodeFinished):
                    end = decoded
        finally:
            await self.prefill.release(address, key)
        assert end is not None
        return found, end


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(tiny_model_dir: Path, profile: Path) -> AsyncIterator[Caller]:
    prompt = tuple(Tokenizer.from_folder(tiny_model_dir).encode("The quick brown fox. " * 9))
    async with running_stack(tiny_model_dir, profile) as stack:
        channels = ChannelPool()
        try:
            yield Caller(stack, PrefillClient(channels), DecodeClient(channels), prompt)
        finally:
            await channels.close()


@pytest.mark.parametrize("name", ASKS)
async def test_tokens_logprobs_and_end_are_the_same_at_every_seam(
    caller: Caller, name: str
) -> None:
    ask = ASKS[name]
    whole, end = await caller.answer(ask)
    ids = [token.token_id for token in whole]
    assert len(ids) >= 15
    for seam in range(1, len(ids)):
        rest, rest_end = await caller.answer(ask, tuple(ids[:seam]))
        assert [token.token_id for token in rest] == ids[seam:], seam
        assert (rest_end.reason, rest_end.stop_match) == (end.reason, end.stop_match)
        for ours, theirs in zip(rest, whole[seam:], strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [i for i, _ in ours.top] == [i for i, _ in theirs.top]


async def test_a_stop_string_that_began_before_the_seam_is_found_behind_it(
    caller: Caller, tiny_model_dir: Path
) -> None:
    tokenizer = Tokenizer.from_folder(tiny_model_dir)
    sampling = SamplingParams(temperature=1.0, seed=2**63 + 1)
    whole, _ = await caller.answer(Ask(sampling))
    ids = [token.token_id for token in whole]
    text = tokenizer.decode(ids[:20])
    stop = StopConditions(max_tokens=NEW, strings=(text[-6:],))
    cut, end = await caller.answer(Ask(sampling, stop=stop))
    length = len(cut)
    assert (end.reason, end.stop_match) == (FinishReason.STOP, text[-6:])
    for seam in range(max(1, length - 6), length):
        rest, rest_end = await caller.answer(Ask(sampling, stop=stop), tuple(ids[:seam]))
        assert [token.token_id for token in rest] == ids[seam:length]
        assert (rest_end.reason, rest_end.stop_match) == (end.reason, end.stop_match)


async def test_room_is_asked_for_what_is_left_and_not_more(caller: Caller) -> None:
    """An answer that had room at its start has room at every seam."""
    ask = ASKS["greedy"]
    table = caller.stack.decode.core.worker.table
    asked: list[Any] = []
    reserve = table.reserve
    table.reserve = lambda spec: asked.append(spec) or reserve(spec)  # type: ignore[method-assign, func-returns-value]
    try:
        whole, _ = await caller.answer(ask)
        ids = tuple(token.token_id for token in whole)
        await caller.answer(ask, ids[:20])
    finally:
        table.reserve = reserve  # type: ignore[method-assign]
    first, second = ((spec.prompt_tokens, spec.max_new_tokens) for spec in asked)
    assert second == (first[0] + 19, first[1] - 19)


@pytest.mark.parametrize(
    ("claimed", "param"),
    [((5,), "earlier_tokens"), ((5, 6, 7), "earlier_tokens"), ((600, 5), "earlier_tokens")],
    ids=["fewer", "more", "no token"],
)
async def test_a_decode_call_with_another_answer_than_was_read_is_refused(
    caller: Caller, claimed: tuple[int, ...], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await caller.answer(ASKS["greedy"], (5, 6), claimed=claimed)
    assert caught.value.param == param
    assert caller.stack.decode.core.worker.table.idle


@pytest.mark.parametrize(("bad", "param"), [(0, "earlier_tokens"), (1, "first_token")])
async def test_tokens_outside_the_grammar_are_refused_by_their_number(
    caller: Caller, bad: int, param: str
) -> None:
    ask = ASKS["grammar"]
    whole, _ = await caller.answer(ask)
    shown = [token.token_id for token in whole[:2]]
    shown[bad] = 400
    with pytest.raises(InvalidRequestError, match=f"number {bad + 1} of the answer") as caught:
        await caller.answer(ask, tuple(shown))
    assert caught.value.param == param


async def test_an_answer_that_had_ended_ends_at_once(caller: Caller) -> None:
    ask = Ask(SamplingParams(temperature=0.0), stop=StopConditions(max_tokens=9, token_ids=(7,)))
    rest, end = await caller.answer(ask, (5, 7, 6))
    assert rest == []
    assert (end.reason, end.stop_match) == (FinishReason.STOP, "7")
