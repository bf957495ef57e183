"""However a gateway cuts an answer into deltas, the whole result is the same."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from gateway.sdk.reading import CallReader
from gateway.sdk.results import Delta
from protos.tandem.v1 import common_pb2, inference_pb2
from tests.support.scripted_gateway import accepted, finished

ANSWER = st.tuples(
    st.text(max_size=12),
    st.lists(st.integers(0, 2**32 - 1), max_size=6),
    st.lists(st.tuples(st.text(min_size=1, max_size=3), st.text(max_size=8)), max_size=3),
)
T = TypeVar("T")
Given = tuple[str, list[int], list[tuple[str, str]]]


def deltas(answer: int, whole: Given, cuts: st.DataObject) -> list[inference_pb2.GenerateResponse]:
    """The same answer in pieces: text, tokens, and one call after the other."""
    text, ids, calls = whole
    found = [
        inference_pb2.GenerateDelta(answer=answer, text="".join(piece))
        for piece in pieces(text, cuts)
    ]
    for some in pieces(ids, cuts):
        tokens = [common_pb2.SampledToken(token_id=token_id) for token_id in some]
        found.append(inference_pb2.GenerateDelta(answer=answer, tokens=tokens))
    for index, (name, arguments) in enumerate(calls):
        begin = inference_pb2.ToolCallDelta(index=index, id=f"c{index}", name=name)
        parts = [begin] + [
            inference_pb2.ToolCallDelta(index=index, arguments="".join(piece))
            for piece in pieces(arguments, cuts)
        ]
        found += [inference_pb2.GenerateDelta(answer=answer, tool_calls=[p]) for p in parts]
    return [inference_pb2.GenerateResponse(delta=delta) for delta in found]


def pieces(whole: Sequence[T], cuts: st.DataObject) -> list[Sequence[T]]:
    bounds = sorted(cuts.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    return [
        whole[start:end] for start, end in zip([0, *bounds], [*bounds, len(whole)], strict=True)
    ]


@given(answers=st.lists(ANSWER, min_size=1, max_size=3), cuts=st.data())
def test_any_cut_adds_up(answers: list[Given], cuts: st.DataObject) -> None:
    reader = CallReader()
    assert reader.take(accepted("r")) is None
    queues = [deltas(index, whole, cuts) for index, whole in enumerate(answers)]
    while waiting := [queue for queue in queues if queue]:
        event = reader.take(cuts.draw(st.sampled_from(waiting)).pop(0))
        assert isinstance(event, Delta)
    for index in range(len(answers)):
        reader.take(finished(answer=index, last=index == len(answers) - 1))
    result = reader.generation()
    assert len(result.answers) == len(answers)
    for answer, (text, ids, calls) in zip(result.answers, answers, strict=True):
        assert answer.text == text
        assert answer.token_ids == tuple(ids)
        assert [(call.name, call.arguments) for call in answer.tool_calls] == calls
        assert [call.id for call in answer.tool_calls] == [f"c{i}" for i in range(len(calls))]
