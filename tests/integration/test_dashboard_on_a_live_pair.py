"""Dashboard, alerts and rules on a real pair after a load run: all that they ask for is there."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import pytest_asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.decode_server import write_profile
from tests.support.full_stack import Stack, running_stack
from tests.support.load_runs import RUN, started, summary_in
from tests.support.prometheus_server import HAS_PROMETHEUS, Prometheus, running_prometheus
from tests.support.promql import OF_PROMETHEUS, OF_TARGETS, grouping, selectors

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES_FILE = DEPLOY / "prometheus/alerts.yml"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PANELS: list[dict[str, Any]] = [
    panel
    for panel in json.loads((DEPLOY / "grafana/tandem.json").read_text("utf-8"))["panels"]
    if panel["type"] != "row"
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
WINDOW = "$__rate_interval"
HERE = "transport"
"""Which transports there are is the machine's affair: any value of this label will do."""
FAULTS = ("corrupt@first=0.3", "seed=5")
BODY: dict[str, Any] = {"prompt": "fox " * 70, "max_tokens": 24, "ignore_eos": True}
NUMBERS = itertools.count()

Series = dict[str, list[dict[str, str]]]
"""Labels of every series, by the name that PromQL selects."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    """A pair that prunes, reads pages, checks its drift, and loses some handoffs on purpose."""
    profile = write_profile(tmp_path_factory.mktemp("profile"))
    async with running_stack(
        tiny_model_dir, profile, prefill={"faults": FAULTS}, decode={"drift_every": 2}
    ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Series:
    """What all three roles show after one load run and requests that go wrong."""
    out = tmp_path_factory.mktemp("load") / "out"
    code, said = await started(
        *RUN, "--host", f"http://{stack.gateway.rest_address}", "--rate", "6", "--seconds", "2",
        "--slo", "chat:ttft=60,tpot=60,gap=60", "--attainment", "0.1", "--keep-going",
        "--max-lag", "1000", "--no-report", "--out", str(out),
    )  # fmt: skip
    assert code == 0, said
    assert summary_in(out)["requests"]["finished"] > 0
    await until_it_went_wrong(stack)
    async with httpx.AsyncClient() as http:
        texts = [
            (await http.get(f"http://{address}/metrics")).text
            for address in targets(stack).values()
        ]
    found: Series = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found


def targets(stack: Stack) -> dict[str, str]:
    return {
        "gateway": stack.gateway.admin_address,
        "prefill": stack.prefill.app.admin_address,
        "decode": stack.decode.admin_address,
    }


async def ask(stack: Stack) -> None:
    """Requests that are refused, left, pruned, sparse, and bound to a schema."""
    name = f"a{next(NUMBERS)}"  # a schema that is known already is not compiled again
    schema = {"name": "x", "schema": {"type": "object", "properties": {name: {"type": "integer"}}}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    form = {"response_format": {"type": "json_schema", "json_schema": schema}}
    for path, fields in (
        ("/v1/completions", BODY),
        ("/v1/completions", BODY | {"tandem": {"mode": "sparse", "page_budget": 4}}),
        ("/v1/completions", {"prompt": "x", "temperature": 9}),
        ("/v1/chat/completions", chat | form),
    ):
        await stack.http.post(path, json=fields)
    body = BODY | {"max_tokens": 400, "stream": True}
    async with stack.http.stream("POST", "/v1/completions", json=body) as answer:
        await anext(answer.aiter_lines())  # and leave


async def until_it_went_wrong(stack: Stack) -> None:
    """Asks until a handoff failed, was tried again, and a client's leaving was noticed."""
    gateway = stack.gateway
    async with asyncio.timeout(60):
        while True:
            await ask(stack)
            async with httpx.AsyncClient() as http:
                text = (await http.get(f"http://{gateway.admin_address}/metrics")).text
            if "tandem_retries_total{" in text and "tandem_disconnects_total{" in text:
                return


def of_all() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and what it says."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"].replace(WINDOW, "1m")
    for rule in RULES:
        yield f"rule {rule.get('alert') or rule['record']}", rule["expr"]


async def test_every_series_and_label_is_shown_after_a_load_run(shown: Series) -> None:
    assert not_shown(shown, of_all()) == []


async def test_the_check_sees_what_is_missing(shown: Series) -> None:
    expressions = (
        "rate(tandem_nothing_total[1m])",
        "tandem_ready_workers{role='gateway'}",
        "tandem_ttft_seconds_bucket{le='0.3'}",
        "sum by (host) (tandem_running)",
    )
    found = not_shown(shown, ((str(place), each) for place, each in enumerate(expressions)))
    assert [place for place, _ in found] == ["0", "1", "2", "3"]


def not_shown(shown: Series, expressions: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Selectors that match no series, and labels that none of the selected series has."""
    wrong = []
    for place, expression in expressions:
        known = set(OF_TARGETS)
        for selector in selectors(expression):
            name = selector.name or ""
            if name in OF_PROMETHEUS | RECORDED:
                continue
            series = shown.get(name, [])
            known |= {label for labels in series for label in labels}
            if not any(_selects(selector, labels) for labels in series):
                wrong.append((place, str(selector)))
        wrong += [(place, label) for label in grouping(expression) - known]
    return wrong


def _selects(selector: promql_parser.VectorSelector, labels: dict[str, str]) -> bool:
    for matcher in selector.matchers.matchers:
        if matcher.name not in labels:
            return False
        equal = str(matcher.op) == str(promql_parser.MatchOp.Equal)
        if equal and matcher.name != HERE and not _same(matcher.value, labels[matcher.name]):
            return False
    return True


def _same(wanted: str, found: str) -> bool:
    """Bounds of buckets are equal as numbers."""
    try:
        return float(wanted) == float(found)
    except ValueError:
        return wanted == found


@HAS_PROMETHEUS
async def test_prometheus_finds_a_number_for_every_panel_and_rule(
    stack: Stack, tmp_path: Path
) -> None:
    async with running_prometheus(tmp_path, targets=targets(stack), rules=RULES_FILE) as prometheus:
        missing = dict.fromkeys(_questions(), "not asked yet")
        async with asyncio.timeout(120):
            while missing:
                await ask(stack)
                missing = {
                    question: said
                    for question in missing
                    if (said := await _answer(prometheus, question))
                }
        rules = await prometheus.rules()
        assert len(rules) == len(RULES)
        assert [rule for rule in rules if rule["health"] != "ok"] == []


def _questions() -> Iterator[str]:
    """Every panel as it stands, and what every rule selects: a quiet alert has no series itself."""
    for place, expression in of_all():
        if place.startswith("panel"):
            yield expression
            continue
        for selector in selectors(expression):
            if selector.name not in RECORDED:
                yield str(selector.name)
    yield from RECORDED


async def _answer(prometheus: Prometheus, question: str) -> str:
    """What is wrong with the answer; empty when at least one series has a number."""
    series = await prometheus.query(question)
    numbers = [float(each["value"][1]) for each in series]
    if any(number == number for number in numbers):  # noqa: PLR0124  NaN
        return ""
    return "NaN only" if numbers else "no series"
