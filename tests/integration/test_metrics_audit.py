"""/metrics of every role, after real traffic, against the table that others rely on."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from protos.tandem.v1 import common_pb2, inference_pb2
from tests.support.decode_server import write_profile
from tests.support.full_stack import Stack, running_stack
from tests.support.metric_table import LABEL_VALUES, TABLE, Metric

pytestmark = pytest.mark.asyncio(loop_scope="module")

PREFIX = "tandem_"
SECRET = "Xylophones are my secret. "
_ADDED = {"le"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pages(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, str]]:
    """The text of each role's page after requests of many kinds."""
    profile = write_profile(tmp_path_factory.mktemp("profile"))
    async with running_stack(tiny_model_dir, profile) as stack:
        await _traffic(stack)
        addresses = {
            "gateway": stack.gateway.admin_address,
            "prefill": stack.prefill.app.admin_address,
            "decode": stack.decode.admin_address,
        }
        async with httpx.AsyncClient() as http:
            yield {
                role: (await http.get(f"http://{address}/metrics")).text
                for role, address in addresses.items()
            }


async def _traffic(stack: Stack) -> None:
    body = {"prompt": SECRET * 8, "max_tokens": 12, "ignore_eos": True}
    schema = {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    form = {"type": "json_schema", "json_schema": schema}
    messages = [{"role": "user", "content": SECRET}]
    for path, fields in (
        ("/v1/completions", body | {"user": "somebody"}),
        ("/v1/completions", body | {"tandem": {"mode": "sparse", "page_budget": 4}}),
        ("/v1/completions", {"prompt": "x", "temperature": 9}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "response_format": form}),
    ):
        await stack.http.post(path, json=fields)
    for number in range(20):
        await stack.http.post(f"/v1/nowhere/{number}", json={})
        await stack.http.get("/v1/models/" + "x" * number)
    await stack.generate(
        inference_pb2.GenerateRequest(text="hi", stop=common_pb2.StopConditions(max_tokens=2))
    )


def families(text: str) -> dict[str, Family]:
    """By the name that is seen in Prometheus; the times of creation, which it ignores, aside."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    }


@pytest.mark.parametrize("role", TABLE)
async def test_names_and_kinds_are_those_of_the_table(pages: dict[str, str], role: str) -> None:
    found = {
        name.removeprefix(PREFIX): family.type for name, family in families(pages[role]).items()
    }
    assert found == {name: metric.kind for name, metric in TABLE[role].items()}


@pytest.mark.parametrize("role", TABLE)
async def test_labels_and_buckets_are_those_of_the_table(pages: dict[str, str], role: str) -> None:
    for name, family in families(pages[role]).items():
        expected = TABLE[role][name.removeprefix(PREFIX)]
        for sample in family.samples:
            assert set(sample.labels) - _ADDED == set(expected.labels), name
        if expected.kind == "histogram" and family.samples:
            assert _buckets(family, expected) == (*expected.buckets, float("inf")), name


@pytest.mark.parametrize("role", TABLE)
async def test_label_values_are_few_and_known(pages: dict[str, str], role: str) -> None:
    for name, family in families(pages[role]).items():
        for sample in family.samples:
            for label, value in sample.labels.items():
                assert value in LABEL_VALUES.get(label, {value}), (name, label)
                assert len(value) <= 64
    assert "ylophone" not in pages[role]
    assert "somebody" not in pages[role]


async def test_paths_and_models_of_callers_are_no_labels(pages: dict[str, str]) -> None:
    requests = families(pages["gateway"])["tandem_requests_total"]
    assert {s.labels["endpoint"] for s in requests.samples if s.name.endswith("_total")} <= {
        *("/v1/completions", "/v1/chat/completions", "Generate"),
    }
    assert "nowhere" not in pages["gateway"]


async def test_the_numbers_moved(pages: dict[str, str]) -> None:
    def value(page: str, name: str, **labels: str) -> float:
        for family in families(pages[page]).values():
            for sample in family.samples:
                if sample.name == PREFIX + name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise AssertionError(name)

    for phase in LABEL_VALUES["phase"] - {"queue", "decode"}:
        assert value("gateway", "phase_seconds_count", phase=phase) > 0, phase
    assert value("gateway", "slo_total", slo="goodput") >= 4
    assert value("gateway", "slo_met_total", slo="goodput") <= value(
        "gateway", "slo_total", slo="goodput"
    )
    assert value("gateway", "rejected_total", reason="invalid_value") == 1
    assert value("prefill", "batch_tokens_count") >= 4
    assert value("decode", "delta_refresh_total") > 0
    assert value("decode", "kv_page_tokens") == 16
    for role in TABLE:
        assert value(role, "grammar_compile_seconds_count") == 1, role
        assert value(role, "config_info", role=role) == 1
        assert value(role, "build_info", role=role) == 1


def _buckets(family: Family, expected: Metric) -> tuple[float, ...]:
    first = {k: v for k, v in family.samples[0].labels.items() if k != "le"}
    assert set(first) == set(expected.labels)
    return tuple(
        float(s.labels["le"])
        for s in family.samples
        if s.name.endswith("_bucket") and first.items() <= s.labels.items()
    )
