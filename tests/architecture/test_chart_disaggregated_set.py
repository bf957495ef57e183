"""The workers as one DisaggregatedSet: the pods of Deployments in a frame of its own."""

from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.support.chart import HAS_HELM, Document, deployments, objects, of_kind, render

pytestmark = HAS_HELM

VALUES = "disaggregated-set"

LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
ROLE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "spec"],
    "properties": {
        "name": {"type": "string", "maxLength": 63, "pattern": LABEL},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["leaderWorkerTemplate", "replicas"],
            "properties": {
                "replicas": {"type": "integer", "minimum": 1},
                "rolloutStrategy": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["type"],
                    "properties": {
                        "type": {"const": "RollingUpdate"},
                        "rollingUpdateConfiguration": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {"maxSurge": COUNT, "maxUnavailable": COUNT},
                        },
                    },
                },
                "leaderWorkerTemplate": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["workerTemplate"],
                    "properties": {
                        "size": {"const": 1},
                        "restartPolicy": {"enum": ["None", "RecreateGroupOnPodRestart"]},
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}
FRAME: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "disaggregatedset.x-k8s.io/v1"},
        "kind": {"const": "DisaggregatedSet"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["roles"],
            "properties": {"roles": {"type": "array", "minItems": 2, "items": ROLE}},
        },
    },
}
"""What of the kind the chart writes, after its definition of August 2026."""


def the_set() -> Document:
    (found,) = of_kind(objects(VALUES), "DisaggregatedSet").values()
    return found


def test_its_frame_is_that_of_the_kind() -> None:
    Draft202012Validator(FRAME).validate(the_set())


@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_its_pods_follow_the_schemas_of_kubernetes(version: str) -> None:
    for deployment in deployments(objects(VALUES)).values():
        kubernetes_validate.validate(deployment, version, strict=True)


def test_its_pods_are_those_of_deployments() -> None:
    same = render(VALUES, changes=["workers=deployments"])
    expected, found = deployments(same), deployments(objects(VALUES))
    assert set(found) == set(expected)
    for name, deployment in found.items():
        assert deployment["spec"]["template"] == expected[name]["spec"]["template"]
        assert deployment["spec"]["selector"] == expected[name]["spec"]["selector"]
        assert deployment["spec"]["replicas"] == expected[name]["spec"]["replicas"]
    assert found["prefill"]["spec"]["replicas"] == 2


def test_all_else_of_the_release_stays() -> None:
    def others(documents: list[Document]) -> list[Document]:
        return [d for d in documents if d["kind"] not in {"Deployment", "DisaggregatedSet"}]

    same = render(VALUES, changes=["workers=deployments"])
    assert others(objects(VALUES)) == others(same)
    assert sorted(of_kind(objects(VALUES), "Deployment")) == [
        "red-tandem-gateway",
        "red-tandem-redis",
    ]
