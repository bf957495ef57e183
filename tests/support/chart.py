"""The Helm chart as Helm renders it; nothing of it needs a cluster."""

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.settings import config_class
from shared.config.loader import LoadedConfig, load_config
from tests.support.compose_project import ROOT, X86_64_LINUX, tool
from tests.support.dockerfiles import DOCKER, read_stages

CHART = ROOT / "deploy" / "helm" / "tandem"
VALUES = ("", *sorted(path.stem for path in (CHART / "ci").glob("*.yaml")))
"""Names of the values files that are tested; the empty one is the chart's defaults."""

HAS_HELM = pytest.mark.skipif(
    not X86_64_LINUX and shutil.which("helm") is None, reason="Helm is not installed"
)

RELEASE, NAMESPACE = "red", "models"

SECRETS = {"tandem-redis/url": "redis://:word@cache:6379/1"}
POD_IP = "10.42.0.17"

Document = dict[str, Any]


def helm_template(
    values: str = "", *, changes: Sequence[str] = (), file: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """`helm template` with a values file of `ci/` or one of one's own, and `--set` changes."""
    command = [tool("helm"), "template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    chosen = CHART / "ci" / f"{values}.yaml" if values else file
    command += ["--values", str(chosen)] if chosen else []
    command += [part for change in changes for part in ("--set", change)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def render(
    values: str = "", *, changes: Sequence[str] = (), file: Path | None = None
) -> list[Document]:
    """The objects that a release would make."""
    result = helm_template(values, changes=changes, file=file)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.load_all(result.stdout, yaml.CSafeLoader) if document]


def of_kind(documents: Sequence[Document], kind: str) -> dict[str, Document]:
    """Objects of a kind by name."""
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


def component(document: Document) -> str:
    """Role that an object belongs to."""
    return str(document["metadata"]["labels"]["app.kubernetes.io/component"])


def container(deployment: Document) -> Document:
    """The one container of a deployment's pods."""
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    found: Document = only
    return found


def environment(deployment: Document, *, secrets: dict[str, str], pod_ip: str) -> dict[str, str]:
    """Variables as a pod would get them.

    Args:
        deployment: the object.
        secrets: text of `secret/key`.
        pod_ip: the pod's address.
    """
    found: dict[str, str] = {}
    for entry in container(deployment)["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "status.podIP"
            found[entry["name"]] = pod_ip
        elif "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            found[entry["name"]] = secrets[f"{reference['name']}/{reference['key']}"]
        else:
            text = entry["value"]
            for name, value in found.items():
                text = text.replace(f"$({name})", value)
            found[entry["name"]] = text
    return found


@functools.cache
def objects(values: str) -> list[Document]:
    return render(values)


def deployments(documents: list[Document]) -> dict[str, Document]:
    """What runs pods, by component; roles of a DisaggregatedSet as Deployments."""
    found = {component(d): d for d in of_kind(documents, "Deployment").values()}
    for document in of_kind(documents, "DisaggregatedSet").values():
        roles = document["spec"]["roles"]
        found |= {role["name"]: as_deployment(document, role) for role in roles}
    return found


def as_deployment(document: Document, role: Document) -> Document:
    """The Deployment with the pods of one role, which Kubernetes' schemas can read."""
    template = role["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    labels = template["metadata"]["labels"]
    keys = [f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{document['metadata']['name']}-{role['name']}", "labels": labels},
        "spec": {
            "replicas": role["spec"]["replicas"],
            "selector": {"matchLabels": {key: labels[key] for key in keys}},
            "template": template,
        },
    }


def pod(deployment: Document) -> Document:
    spec: Document = deployment["spec"]["template"]["spec"]
    return spec


def image_variables(role: str, deployment: Document) -> dict[str, str]:
    file = (
        "cuda.Dockerfile" if container(deployment)["image"].endswith(":cuda") else "cpu.Dockerfile"
    )
    return read_stages(DOCKER / file)[role].env


def settings_of(role: str, documents: list[Document]) -> LoadedConfig[Any]:
    deployment = deployments(documents)[role]
    environ = environment(deployment, secrets=SECRETS, pod_ip=POD_IP)
    return load_config(
        config_class(role), section=role, environ={**image_variables(role, deployment), **environ}
    )


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def pods_of(selector: dict[str, str], documents: list[Document]) -> list[str]:
    found = deployments(documents)
    return [
        name
        for name, d in found.items()
        if matches(selector, d["spec"]["template"]["metadata"]["labels"])
    ]
