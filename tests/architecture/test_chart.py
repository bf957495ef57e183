"""The Helm chart, rendered: Kubernetes' schemas, our settings, probes, ports and metrics."""

import json
import re
import subprocess
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from deploy.settings import ROLE_NAMES, config_class
from shared.config.loader import load_config
from shared.errors import ConfigError
from shared.rpc.health import LIVENESS, READINESS
from shared.telemetry.admin import LOCAL_PREFILL_METRICS
from tests.support.chart import (
    CHART,
    HAS_HELM,
    POD_IP,
    SECRETS,
    VALUES,
    Document,
    component,
    container,
    deployments,
    image_variables,
    matches,
    objects,
    of_kind,
    pod,
    pods_of,
    settings_of,
)
from tests.support.compose_project import tool
from tests.support.compose_run import DOCUMENTED_PORTS

pytestmark = HAS_HELM

SCHEMA_VERSIONS = ("1.27", "1.37")
"""The oldest version that Chart.yaml allows and the newest whose schemas are there."""

WITHOUT_SCHEMA = {"PodMonitor", "ScaledObject", "DisaggregatedSet"}
"""Objects of the Prometheus operator, of KEDA, and of kubernetes-sigs/lws."""

KINDS = {
    "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler",
}  # fmt: skip
"""All others."""

DRAIN_SETTING = {"prefill": "drain_s", "decode": "drain_s", "gateway": "drain_timeout_s"}


@pytest.fixture(params=VALUES)
def documents(request):
    return objects(request.param)


@pytest.fixture(autouse=True)
def _without_a_settings_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("values", VALUES)
def test_helm_has_no_remark(values):
    command = [tool("helm"), "lint", "--strict", "--quiet", str(CHART)]
    command += ["--values", str(CHART / "ci" / f"{values}.yaml")] if values else []
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("version", SCHEMA_VERSIONS)
def test_objects_follow_the_schemas_of_kubernetes(version):
    everything = {json.dumps(d, sort_keys=True): d for v in VALUES for d in objects(v)}
    checked = [d for d in everything.values() if d["kind"] not in WITHOUT_SCHEMA]
    assert {d["kind"] for d in checked} == KINDS
    for document in checked:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_find_a_mistake():
    deployment = deployments(objects(""))["decode"]
    spoiled = yaml.safe_load(yaml.safe_dump(deployment))
    container(spoiled)["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(spoiled, SCHEMA_VERSIONS[-1], strict=True)


@pytest.mark.parametrize("role", ROLE_NAMES)
def test_every_variable_is_a_setting_and_every_value_fits(role, documents):
    value = settings_of(role, documents).value
    documented = DOCUMENTED_PORTS[role]
    assert {key: getattr(value, key.lower()) for key in documented} == dict(documented)
    ports = {port["containerPort"] for port in container(deployments(documents)[role])["ports"]}
    assert ports == set(documented.values())
    assert value.host == value.admin_host == "0.0.0.0"  # noqa: S104
    if role != "gateway":
        assert value.advertise_address == f"{POD_IP}:{value.port}"


def test_discovery_leads_to_services_of_the_release(documents):
    services = of_kind(documents, "Service")
    gateway = settings_of("gateway", documents).value
    named = [*gateway.prefill_workers, *gateway.decode_workers]
    if not gateway.redis_url:
        assert len(named) == 2
    elif gateway.redis_url != SECRETS["tandem-redis/url"]:
        named = [re.fullmatch(r"redis://(.+)/0", gateway.redis_url)[1]]  # type: ignore[index]
    for address in named:
        host, _, port = address.partition(":")
        assert int(port) in {entry["port"] for entry in services[host]["spec"]["ports"]}
    urls = {settings_of(role, documents).value.redis_url for role in ROLE_NAMES}
    assert urls == {gateway.redis_url}


@pytest.mark.parametrize("role", ROLE_NAMES)
def test_probes_ask_what_a_role_answers(role, documents):
    value = settings_of(role, documents).value
    probed = container(deployments(documents)[role])
    wanted = {"startupProbe": LIVENESS, "readinessProbe": READINESS, "livenessProbe": LIVENESS}
    pages = {LIVENESS: "/health/live", READINESS: "/health/ready"}
    for name, service in wanted.items():
        probe = probed[name]
        if value.tls_cert is None:
            port = value.grpc_port if role == "gateway" else value.port
            assert probe["grpc"] == {"port": port, "service": service}
        else:
            assert probe["httpGet"] == {"path": pages[service], "port": "admin"}
    assert (
        probed["startupProbe"]["periodSeconds"] * probed["startupProbe"]["failureThreshold"] >= 120
    )


@pytest.mark.parametrize("role", ROLE_NAMES)
def test_a_pod_lives_longer_than_its_drain(role, documents):
    deployment = deployments(documents)[role]
    sleep, seconds = container(deployment)["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    drain_s = getattr(settings_of(role, documents).value, DRAIN_SETTING[role])
    assert pod(deployment)["terminationGracePeriodSeconds"] > float(seconds) + drain_s


def test_pods_are_confined_and_write_where_any_user_may(documents):
    for name, deployment in deployments(documents).items():
        spec, only = pod(deployment), container(deployment)
        assert spec["securityContext"]["runAsNonRoot"], name
        assert not spec["automountServiceAccountToken"], name
        assert not spec["enableServiceLinks"], name
        assert only["securityContext"]["readOnlyRootFilesystem"], name
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in only["volumeMounts"]}
        assert {mount["name"] for mount in mounts.values()} == set(volumes), name
        if name in ROLE_NAMES:
            assert image_variables(name, deployment)["HOME"] in mounts, name
            files = [v for v in _paths(name, documents) if str(v).startswith("/etc/tandem")]
            assert all(str(path.parent) in mounts for path in files), name
        if name in {"prefill", "decode"}:
            assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"]["medium"] == "Memory"  # noqa: S108


def _paths(role: str, documents: list[Document]) -> list[Any]:
    value = settings_of(role, documents).value
    names = [name for name in value.__slots__ if "tls" in name or name == "api_keys"]
    return [path for name in names if (path := getattr(value, name)) and hasattr(path, "parent")]


def test_service_links_would_stop_a_role():
    with pytest.raises(ConfigError, match="TANDEM_PREFILL_PORT"):
        load_config(
            config_class("decode"),
            section="decode",
            environ={"TANDEM_PREFILL_PORT": "tcp://10.0.0.1:8101"},
        )


def test_selectors_lead_to_pods_and_ports_of_the_release(documents):
    found = deployments(documents)
    for name, deployment in found.items():
        assert pods_of(deployment["spec"]["selector"]["matchLabels"], documents) == [name]
    for service in of_kind(documents, "Service").values():
        (target,) = pods_of(service["spec"]["selector"], documents)
        names = {port["name"] for port in container(found[target])["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
        headless = service["spec"].get("clusterIP") == "None"
        assert headless == (target in {"prefill", "decode"})
    budgets = of_kind(documents, "PodDisruptionBudget").values()
    covered = [pods_of(b["spec"]["selector"]["matchLabels"], documents) for b in budgets]
    assert sorted(covered) == [["decode"], ["gateway"], ["prefill"]]
    for monitor in of_kind(documents, "PodMonitor").values():
        assert matches(
            monitor["spec"]["selector"]["matchLabels"],
            found["decode"]["spec"]["template"]["metadata"]["labels"],
        )
        (expression,) = monitor["spec"]["selector"]["matchExpressions"]
        assert set(expression["values"]) == set(ROLE_NAMES)
        of_role, of_local = monitor["spec"]["podMetricsEndpoints"]
        assert of_role["port"] == of_local["port"] == "admin"
        assert (of_role["path"], of_local["path"]) == ("/metrics", LOCAL_PREFILL_METRICS)
        keep, rename = of_local["relabelings"]
        assert (keep["action"], keep["regex"]) == ("keep", "decode")
        assert rename["targetLabel"] == "instance"


def test_kv_comes_to_decode_from_prefill_and_gateway_alone(documents):
    policies = {component(p): p["spec"] for p in of_kind(documents, "NetworkPolicy").values()}
    if not policies:
        assert documents == objects("static")
        return
    allowed = {
        role: {
            port["port"]: [
                name
                for peer in rule.get("from", [])
                if "podSelector" in peer
                for name in pods_of(peer["podSelector"]["matchLabels"], documents)
            ]
            for rule in spec["ingress"]
            for port in rule["ports"]
        }
        for role, spec in policies.items()
    }
    assert allowed["decode"] == {8201: ["gateway", "prefill"], 9200: []}
    assert allowed["prefill"] == {8101: ["gateway"], 9100: []}
    assert set(allowed["gateway"]) == {8000, 8001, 9000}
    for role, spec in policies.items():
        assert pods_of(spec["podSelector"]["matchLabels"], documents) == [role]
        for rule in spec["ingress"]:
            assert rule.get("from") or (role == "gateway" and rule["ports"][0]["port"] == 8000)
    if "redis" in deployments(documents):
        assert sorted(allowed["redis"][6379]) == sorted(ROLE_NAMES)
