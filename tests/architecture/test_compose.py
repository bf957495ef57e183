"""docker-compose.yml and its GPU override, read by Compose itself and by our own settings."""

import functools
import ipaddress
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.settings import config_class
from loadtest.load import __main__ as load_suite
from shared.config.loader import LoadedConfig, load_config
from shared.errors import ConfigError
from shared.telemetry.admin import LOCAL_PREFILL_METRICS
from tests.support.compose_project import (
    BASE,
    GPU,
    HAS_COMPOSE,
    ROOT,
    Project,
    compose_config,
    read_project,
    role_of,
    seconds,
    start_order,
    tool,
)
from tests.support.compose_run import DOCUMENTED_PORTS, LOCUST_PORT, image_of

pytestmark = HAS_COMPOSE

DRAIN_SETTING = {"prefill": "drain_s", "decode": "drain_s", "gateway": "drain_timeout_s"}
STOP_SLACK_S = 10.0
"""A role closes its streams and servers after its drain."""

LAYOUTS = {
    "cpu": ((BASE,), ()),
    "obs": ((BASE,), ("obs",)),
    "load": ((BASE,), ("load",)),
    "1p1d": ((BASE, GPU), ()),
    "2p2d": ((BASE, GPU), ("2p", "2d")),
    "3p1d": ((BASE, GPU), ("3p",)),
    "1p3d": ((BASE, GPU), ("3d",)),
    "4p4d": ((BASE, GPU), ("4p", "4d")),
    "4p4d-obs": ((BASE, GPU), ("4p", "4d", "obs")),
}
GPU_LAYOUTS = {"1p1d": (1, 1), "2p2d": (2, 2), "3p1d": (3, 1), "1p3d": (1, 3), "4p4d": (4, 4)}


@functools.cache
def project_of(layout: str) -> Project:
    files, profiles = LAYOUTS[layout]
    return read_project(*files, profiles=profiles)


@pytest.fixture(params=LAYOUTS)
def project(request):
    return project_of(request.param)


def roles(project: Project):
    return {name: service for name, service in project["services"].items() if role_of(service)}


def settings_of(name: str, project: Project) -> LoadedConfig[Any]:
    """The settings that a service's process would load, its settings file included."""
    service = project["services"][name]
    role = role_of(service)
    environ = {**image_of(service).env, **service["environment"]}
    assert environ.pop("TANDEM_CONFIG") == "/run/secrets/settings"
    file = Path(project["secrets"]["settings"]["file"])
    return load_config(config_class(str(role)), section=str(role), environ=environ, file=file)


def test_files_follow_the_compose_specification():
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    result = subprocess.run(
        [*command, str(BASE), str(GPU)], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stdout


def test_compose_refuses_what_cannot_start(tmp_path):
    cycle = tmp_path / "cycle.yml"
    cycle.write_text("services: {holder: {ipc: 'service:prefill'}}\n", encoding="utf-8")
    assert compose_config(BASE, GPU, cycle).returncode != 0
    unknown = tmp_path / "unknown.yml"
    unknown.write_text("services: {gateway: {depends_on: [nobody]}}\n", encoding="utf-8")
    assert compose_config(BASE, unknown).returncode != 0


def test_every_variable_is_a_setting_and_every_value_fits(project):
    for name in roles(project):
        loaded = settings_of(name, project)
        assert loaded.value.host == loaded.value.admin_host == "0.0.0.0"  # noqa: S104
        assert loaded.value.redis_url == "redis://redis:6379/0"
        assert loaded.origins["redis_url"].startswith("file")  # a password stays out of variables


def test_an_unknown_variable_would_be_found(project):
    changed = {**project, "services": {**project["services"]}}
    service = changed["services"]["decode"]
    environment = {**service["environment"], "TANDEM_DECODE__MAX_BATCHES": "4"}
    changed["services"]["decode"] = {**service, "environment": environment}
    with pytest.raises(ConfigError, match="max_batch"):
        settings_of("decode", changed)


def test_workers_tell_others_an_address_that_leads_to_them(project):
    for name, service in roles(project).items():
        value = settings_of(name, project).value
        documented = DOCUMENTED_PORTS[str(role_of(service))]
        assert {key: getattr(value, key.lower()) for key in documented} == dict(documented)
        if role_of(service) != "gateway":
            assert value.advertise_address == f"{name}:{value.port}"
        assert "redis" in service["depends_on"]
        assert "state" in service["networks"]


def test_published_ports_are_those_of_the_gateway_on_loopback(project):
    for name, service in project["services"].items():
        for port in service.get("ports", []):
            assert ipaddress.ip_address(port["host_ip"]).is_loopback
            if role_of(service):
                assert name == "gateway"
                assert port["target"] in DOCUMENTED_PORTS["gateway"].values()
                assert str(port["target"]) == port["published"]


def test_every_role_has_time_to_drain(project):
    for name, service in roles(project).items():
        drain_s = getattr(settings_of(name, project).value, DRAIN_SETTING[str(role_of(service))])
        assert seconds(service["stop_grace_period"]) >= drain_s + STOP_SLACK_S
    stopped = start_order(project["services"])[::-1]
    in_order = [str(role_of(project["services"][name])) for name in stopped]
    order = {role: [i for i, r in enumerate(in_order) if r == role] for role in DRAIN_SETTING}
    assert max(order["gateway"]) < min(order["prefill"])
    assert max(order["prefill"]) < min(order["decode"])
    assert max(order["decode"]) < stopped.index("redis")


def test_services_are_confined(project):
    for name, service in project["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert service["user"].split(":")[0] not in {"0", "root"}, name
        assert "stop_grace_period" in service, name
        assert "privileged" not in service, name
        assert "CUDA_VISIBLE_DEVICES" not in service.get("environment", {}), name
    for name, service in roles(project).items():
        assert service["user"].endswith(":0"), name
        assert service["logging"]["options"]["max-size"], name
        assert int(service["shm_size"]) >= 8 << 30, name
        assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}, name
        assert service["ulimits"]["nofile"]["soft"] >= 65536, name
        written = [mount["target"] for mount in service["volumes"]]
        assert written == [image_of(service).workdir], name
        assert service["tmpfs"][0].startswith("/tmp:"), name  # noqa: S108


def test_roles_are_asked_with_the_check_of_their_image(project):
    for service in roles(project).values():
        check = service["healthcheck"]
        assert tuple(check["test"]) == ("CMD", *image_of(service).health)
        assert seconds(check["start_interval"]) <= 5
        gpu = "cuda" in service["build"]["dockerfile"]
        assert seconds(check["start_period"]) >= (600 if gpu else 60)


def test_mounted_files_and_secrets_exist(project):
    for service in project["services"].values():
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert Path(mount["source"]).exists()
                assert mount["read_only"]
    for secret in project["secrets"].values():
        assert Path(secret["file"]).is_file()


@pytest.mark.parametrize("layout", GPU_LAYOUTS)
def test_a_gpu_layout_has_its_workers_on_gpus_of_their_own(layout):
    project = project_of(layout)
    found: dict[str, list[str]] = {role: [] for role in ("prefill", "decode", "gateway")}
    for name, service in roles(project).items():
        found[str(role_of(service))].append(name)
    assert (len(found["prefill"]), len(found["decode"])) == GPU_LAYOUTS[layout]
    assert found["gateway"] == ["gateway"]
    workers = found["prefill"] + found["decode"]
    devices = {settings_of(name, project).value.device for name in workers}
    assert len(devices) == len(workers)
    assert {device.partition(":")[0] for device in devices} == {"cuda"}


@pytest.mark.parametrize("layout", GPU_LAYOUTS)
def test_gpu_workers_share_what_cuda_ipc_needs(layout):
    services = project_of(layout)["services"]
    holder = services["holder"]
    assert holder["ipc"] == "shareable"
    assert holder["init"]  # the first process of the namespace reaps the others
    for name, service in services.items():
        if role_of(service) in {"prefill", "decode"}:
            assert service["ipc"] == service["pid"] == "service:holder", name
            assert service["user"] == holder["user"], name
            assert service["depends_on"]["holder"]["restart"], name
            assert not service["init"], name
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            assert device["driver"] == "nvidia", name
            assert device["capabilities"] == ["gpu"], name
            assert device["count"] == -1, name  # all: the peer's GPU has to be seen as well
            assert "device_ids" not in device, name
    assert "deploy" not in services["gateway"]


def test_secrets_and_addresses_of_an_operator_take_effect(tmp_path):
    settings = tmp_path / "tandem.toml"
    settings.write_text('[gateway]\nredis_url = "redis://:word@cache:6379/1"\n', encoding="utf-8")
    keys = tmp_path / "keys.json"
    keys.write_text((ROOT / "deploy/docker/no-keys.json").read_text(encoding="utf-8"), "utf-8")
    environ = {
        "SETTINGS_FILE": str(settings),
        "API_KEYS_FILE": str(keys),
        "OTLP_ENDPOINT": "http://otel-collector:4317",
        "SERVED_MODEL": "qwen2.5",
        "CONTAINER_UID": "4711",
        "REST_PORT": "18000",
    }
    project = read_project(environ=environ)
    loaded = settings_of("gateway", project).value
    assert loaded.redis_url == "redis://:word@cache:6379/1"
    assert str(loaded.api_keys) == "/run/secrets/api_keys"
    assert project["secrets"]["api_keys"]["file"] == str(keys)
    for name in roles(project):
        assert settings_of(name, project).value.model == "qwen2.5"
        assert settings_of(name, project).value.otlp_endpoint == "http://otel-collector:4317"
        assert project["services"][name]["user"] == "4711:0"
    assert project["services"]["gateway"]["ports"][0]["published"] == "18000"
    assert settings_of("gateway", read_project()).value.api_keys is None


def test_the_load_service_asks_for_what_the_suite_understands(monkeypatch):
    project = project_of("load")
    service = project["services"]["load"]
    assert image_of(service).entrypoint == ("python", "-m", "loadtest.load")
    started: list[list[str]] = []

    def become_locust(flags):
        started.append(flags)
        return 0

    monkeypatch.setattr(load_suite, "become_locust", become_locust)
    assert load_suite.main(service["command"]) == 0
    flags = dict(flag.split("=", 1) for flag in started[0])
    assert flags["--host"] == f"http://gateway:{DOCUMENTED_PORTS['gateway']['PORT']}"
    assert flags["--web-port"] == str(service["ports"][0]["target"]) == str(LOCUST_PORT)
    assert Path(flags["--out"]).parent == Path(service["volumes"][0]["target"])
    assert set(service["networks"]) == {"cluster"}
    assert service["depends_on"]["gateway"]["condition"] == "service_healthy"
    environ = {"LOAD_WORKLOAD": "mixed", "LOAD_RATE": "fast", "TANDEM_API_KEY": "key"}
    wrong = read_project(profiles=("load",), environ=environ)["services"]["load"]
    assert wrong["environment"]["TANDEM_API_KEY"] == "key"
    with pytest.raises(SystemExit):
        load_suite.main(wrong["command"])
    assert "load" not in project_of("cpu")["services"]


def test_prometheus_finds_every_worker_by_an_alias():
    scrape = yaml.safe_load((ROOT / "deploy/docker/prometheus.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in scrape["scrape_configs"]}
    project = project_of("4p4d-obs")
    assert set(jobs) == {"gateway", "prefill", "decode", "local-prefill"}
    assert jobs["local-prefill"] == jobs["decode"]
    (local,) = [job for job in scrape["scrape_configs"] if job["job_name"] == "local-prefill"]
    assert local["metrics_path"] == LOCAL_PREFILL_METRICS
    assert [rule["target_label"] for rule in local["relabel_configs"]] == ["instance"]
    for service in roles(project).values():
        role = str(role_of(service))
        assert jobs[role]["port"] == DOCUMENTED_PORTS[role]["ADMIN_PORT"]
        assert jobs[role]["names"] == service["networks"]["cluster"]["aliases"]
    assert "cluster" in project["services"]["prometheus"]["networks"]


def test_redis_is_reached_by_roles_only():
    project = project_of("4p4d-obs")
    assert project["networks"]["state"]["internal"]
    inside = {name for name, s in project["services"].items() if "state" in s.get("networks", {})}
    assert inside == {"redis", *roles(project)}
    assert list(project["services"]["redis"]["networks"]) == ["state"]
