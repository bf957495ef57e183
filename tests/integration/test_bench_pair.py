"""`tandem bench pair` on a pair that runs already: both clients, every method, a picture."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.bench_pair import RESULT_FILE, PairRequest, run_pair
from deploy.pair_fit import fitted
from loadtest.pair.agreement import compare
from loadtest.pair.clients import GrpcClient, HttpClient, PairClient, Question, Timed
from loadtest.pair.measure import PairBench
from loadtest.pair.parity import ParityPlan, ask_all
from loadtest.pair.plan import ARMS, Load, PairPlan
from loadtest.pair.surroundings import pair_facts
from shared.errors import ConfigError, InvalidRequestError, TandemError, UnavailableError
from tests.support.full_stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDS = tuple(range(20, 420))
TOKENS = 6


def url_of(stack: Stack) -> str:
    return f"http://{stack.gateway.rest_address}"


def clients_of(stack: Stack) -> list[PairClient]:
    return [HttpClient(url_of(stack)), GrpcClient(stack.gateway.grpc_address)]


async def test_both_clients_see_the_same_answer(stack: Stack) -> None:
    reports = []
    for client in clients_of(stack):
        question = Question(token_ids=IDS, new_tokens=TOKENS, arm=ARMS["both10"], trace=True)
        timed = await asyncio.to_thread(client.ask, question)
        client.close()
        assert 0 < timed.ttft_s < timed.second_s <= timed.seconds
        assert timed.tokens == TOKENS
        assert timed.tokens_per_s > 0
        assert 0 < timed.phase_s("prefill") < timed.ttft_s
        assert timed.phase_s("no such phase") == 0.0
        assert timed.report["trace"]["prompt"]["handoff"]["computed"]
        reports.append(timed.report)
    for name in ("prompt_tokens", "kept_tokens", "kv_bytes", "transport"):
        assert reports[0][name] == reports[1][name], name
    assert reports[0]["attended_ratio"] == pytest.approx(reports[1]["attended_ratio"], abs=1e-3)
    assert reports[0]["kept_tokens"] == len(IDS) // 10


async def test_refusals_are_errors(stack: Stack) -> None:
    question = Question(token_ids=(1 << 20,), new_tokens=TOKENS, arm=ARMS["full"])
    http, grpc = clients_of(stack)
    with pytest.raises(UnavailableError, match="400"):
        await asyncio.to_thread(http.ask, question)
    with pytest.raises(InvalidRequestError):
        await asyncio.to_thread(grpc.ask, question)
    grpc.close()
    gone = HttpClient("http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await asyncio.to_thread(gone.ask, question)
    with pytest.raises(UnavailableError):
        await asyncio.to_thread(pair_facts, "http://127.0.0.1:9")


async def test_one_token_has_no_second(stack: Stack) -> None:
    question = Question(token_ids=IDS, new_tokens=1, arm=ARMS["full"])
    for client in clients_of(stack):
        with pytest.raises(TandemError, match="1 tokens"):
            await asyncio.to_thread(client.ask, question)
        client.close()


async def test_a_pair_agrees_with_itself(stack: Stack) -> None:
    told: list[str] = []
    plan = ParityPlan(arms=("full", "claa10", "both10"), characters=1200, new_tokens=8)
    address = stack.gateway.grpc_address
    wanted, given = [
        await asyncio.to_thread(ask_all, plan, address, progress=told.append) for _ in range(2)
    ]
    found = compare(wanted, given, level=1e-3)
    assert found["equal"]
    both, pruned = found["arms"]["both10"], found["arms"]["claa10"]
    assert (both["answers"], both["steps_compared"], both["steps"]) == (3, 24, 24)
    assert both["transports"] == ["grpc"]
    assert (both["differences"], both["ends"], both["kept_tokens"]) == ([], [], [])
    assert pruned["kept_alike"] == 1.0
    assert pruned["kept_tokens"] == [max(16, tokens // 10) for tokens in pruned["prompt_tokens"]]
    assert len(told) == 2 * plan.answers
    assert told[-1].startswith("answer 9 of 9: CLAA 10 % + DELTA, ")


async def test_a_run_is_written_with_its_picture(
    stack: Stack, tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = PairRequest(
        plan=PairPlan(
            arms=("full", "claa10", "delta"),
            prompts=(200, 400),
            new_tokens=5,
            loads=(Load(at_once=1, rounds=2, warm_ups=1), Load(at_once=2, rounds=1, warm_ups=0)),
            short_rounds=1,
            short_tokens=2,
        ),
        model=str(tiny_model_dir),
        out=tmp_path / "out",
        url=url_of(stack),
        grpc=stack.gateway.grpc_address,
        timeline=tmp_path / "timeline.png",
    )
    code = await asyncio.to_thread(run_pair, request, command="tandem bench pair", as_json=False)
    assert code == 0
    found: dict[str, Any] = json.loads((tmp_path / "out" / RESULT_FILE).read_text())
    assert [(c["prompt_tokens"], c["at_once"]) for c in found["cells"]] == [
        (200, 1), (200, 2), (400, 1), (400, 2),
    ]  # fmt: skip
    for cell in found["cells"]:
        assert list(cell["arms"]) == ["full", "claa10", "delta"]
        alone = cell["at_once"] == 1
        assert {arm["requests"] for arm in cell["arms"].values()} == {3 if alone else 2}
        for arm in cell["arms"].values():
            assert arm["transports"] == ["grpc"]
            assert arm["added_ttft_ms"]["min"] > 0
        if alone:
            assert set(cell["arms"]["claa10"]["ttft_ms_by_client"]) == {"http", "grpc"}
    assert found["traced"]["arm"] == "claa10"
    assert found["traced"]["handoff"]["pushed"]
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert {worker["role"] for worker in found["pair"]["workers"]} == {"prefill", "decode"}
    assert found["plan"]["prompts"] == [200, 400]
    assert found["limits"] == [], "they are for two H200s with the 8B shape"
    with pytest.raises(ConfigError, match="give smaller --prompts"):
        await asyncio.to_thread(
            fitted,
            dataclasses.replace(request, out=tmp_path / "other", plan=PairPlan(prompts=(1 << 20,))),
            prompts_given=True,
            tell=print,
        )
    assert "| CLAA 10 % |" in capsys.readouterr().out


async def test_a_picture_that_cannot_be_drawn_is_known_before_anything_is_timed(
    stack: Stack, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def untraced(_: PairBench, arm: str, *, tokens: int) -> Timed:
        asked.append(f"{arm} {tokens}")
        return Timed(ttft_s=0.1, second_s=0.2, seconds=0.3, tokens=4, report={"kv_bytes": 0})

    monkeypatch.setattr(PairBench, "traced", untraced)
    monkeypatch.setattr(PairBench, "run", lambda _: pytest.fail("rounds were run"))
    request = PairRequest(
        plan=PairPlan(arms=("full", "claa20"), prompts=(400, 200), new_tokens=5),
        model=str(tiny_model_dir),
        out=tmp_path / "out",
        url=url_of(stack),
        grpc=stack.gateway.grpc_address,
        timeline=tmp_path / "timeline.png",
    )
    with pytest.raises(InvalidRequestError, match="does not tell when its KV"):
        await asyncio.to_thread(run_pair, request, command="tandem bench pair", as_json=False)
    assert asked == ["claa20 200"]
