"""What the chart makes of values: placement, GPUs, autoscaling; and what it refuses."""

import json
import re

import pytest
import yaml

from deploy.settings import ROLE_NAMES
from tests.support.chart import (
    CHART,
    HAS_HELM,
    Document,
    component,
    container,
    deployments,
    helm_template,
    objects,
    of_kind,
    pod,
    pods_of,
    settings_of,
)
from tests.support.metric_table import TABLE

pytestmark = HAS_HELM


@pytest.fixture(autouse=True)
def _without_a_settings_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_prefill_goes_where_decode_is():
    (preferred,) = pod(deployments(objects(""))["prefill"])["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    selector = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert pods_of(selector, objects("")) == ["decode"]
    required = pod(deployments(objects("gpu-1p1d"))["prefill"])["affinity"]["podAffinity"]
    assert list(required) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    assert "affinity" not in pod(deployments(objects("static"))["prefill"])


def test_gpu_workers_ask_for_a_gpu_and_use_it():
    documents = objects("gpu-1p1d")
    for role in ("prefill", "decode"):
        limits = container(deployments(documents)[role])["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == 1
        assert settings_of(role, documents).value.device == "cuda:0"
    assert settings_of("decode", documents).value.kv_bytes == 34359738368
    assert "limits" in container(deployments(documents)["gateway"])["resources"]
    assert settings_of("prefill", objects("")).value.device == "cpu"


def asked_metrics(document: Document) -> set[tuple[str, str]]:
    """Roles and metrics that a scaler looks at."""
    own = component(document)
    if document["kind"] == "HorizontalPodAutoscaler":
        return {(own, metric["pods"]["metric"]["name"]) for metric in document["spec"]["metrics"]}
    found = set()
    for trigger in document["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        name, pods = re.fullmatch(r'sum\((\w+)\{namespace="models",pod=~"(.+)"\}\)', query).groups()  # type: ignore[union-attr]
        roles = [r for r in ROLE_NAMES if re.fullmatch(pods, f"red-tandem-{r}-5d4f8-x7k2p")]
        assert own in roles
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        found |= {(role, name) for role in roles}
    return found


@pytest.mark.parametrize(
    ("values", "kind"), [("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")]
)
def test_scalers_look_at_metrics_that_roles_have(values, kind):
    documents = objects(values)
    scalers = of_kind(documents, kind)
    assert sorted(component(scaler) for scaler in scalers.values()) == ["decode", "prefill"]
    asked = set()
    for name, scaler in scalers.items():
        assert scaler["spec"]["scaleTargetRef"]["name"] == name
        deployment = of_kind(documents, "Deployment")[name]
        assert "replicas" not in deployment["spec"]  # the scaler owns the number
        lowest = scaler["spec"].get("minReplicas") or scaler["spec"].get("minReplicaCount")
        assert lowest >= 1
        asked |= asked_metrics(scaler)
    assert ("prefill", "tandem_queued_prompt_tokens") in asked
    assert ("decode", "tandem_kv_utilization") in asked
    for role, metric in asked:
        assert TABLE[role][metric.removeprefix("tandem_")].kind == "gauge"
    assert of_kind(documents, "PodMonitor")


@pytest.mark.parametrize(
    "change",
    [
        "gateway.replica=2",
        "gateway.replicas=0",
        "prefill.autoscaling.minReplicas=0",
        "prefill.autoscaling.kind=vpa",
        "decode.autoscaling.kvUtilization=70",
        "decode.settings.drain_s=5",
        "decode.settings.redis_url=redis://x",
        "decode.sharedMemory=lots",
        "discovery=dns",
        "workers=statefulSets",
        "pairAffinity=sometimes",
        "prefill.image.digest=sha256:abc",
        "gateway.shutdown.slackSeconds=0",
        "otlpEndpoint=collector:4317",
    ],
)
def test_the_schema_of_values_refuses(change):
    result = helm_template(changes=[change])
    assert result.returncode != 0
    assert "values don't meet the specifications of the schema" in result.stderr


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (["discovery=static", "prefill.replicas=2"], "discovery static names one prefill worker"),
        (["redis.enabled=false"], "discovery redis needs"),
        (["model=llama-3.1-8b-instruct"], "needs cache.existingClaim"),
        (["tls.workers.serverName=x"], "tls.workers needs"),
        (["decode.autoscaling.minReplicas=9"], "is above maxReplicas"),
        (["workers=disaggregatedSet", "prefill.autoscaling.kind=hpa"], "set prefill.autoscaling"),
        (["workers=disaggregatedSet", "decode.strategy.type=Recreate"], "decode.strategy.type"),
    ],
)
def test_the_chart_refuses_what_could_not_work(changes, text):
    result = helm_template(changes=changes)
    assert result.returncode != 0
    assert text in result.stderr


def test_every_value_is_described_by_the_schema():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert not schema["additionalProperties"]
    assert set(values) == set(schema["required"])
