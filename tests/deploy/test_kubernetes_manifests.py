"""deploy/kubernetes: pods, volumes, probes and rights."""

from __future__ import annotations

from typing import Any

import pytest

NAMES = ["cinestrata-api", "cinestrata-worker-cpu", "cinestrata-worker-gpu"]


@pytest.fixture
def deployments(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Deployments by name."""
    return {d["metadata"]["name"]: d["spec"] for d in manifests if d["kind"] == "Deployment"}


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = deployment["template"]["spec"]
    return pod


@pytest.mark.parametrize("name", NAMES)
def test_pods_have_no_more_rights_than_they_need(deployments: dict[str, dict[str, Any]], name: str) -> None:
    pod = pod_of(deployments[name])
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"/data", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
        secrets = {source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source}
        assert ("cinestrata-api" in secrets) is (container["name"] == "api")
    for container in pod["containers"]:
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", NAMES)
def test_network_policies_open_only_the_port_of_the_api(
    manifests: list[dict[str, Any]], deployments: dict[str, dict[str, Any]], name: str
) -> None:
    labels = deployments[name]["template"]["metadata"]["labels"]
    policies = [d["spec"] for d in manifests if d["kind"] == "NetworkPolicy"]
    (policy,) = [policy for policy in policies if _selects(policy["podSelector"], labels)]
    assert policy["policyTypes"] == ["Ingress"]
    ports = [port["port"] for rule in policy.get("ingress", ()) for port in rule["ports"]]
    containers = pod_of(deployments[name])["containers"]
    assert ports == [port["containerPort"] for container in containers for port in container.get("ports", ())]


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector selects a pod with these labels."""
    is_equal = selector["matchLabels"].items() <= labels.items()
    expressions = selector.get("matchExpressions", ())
    assert {expression["operator"] for expression in expressions} <= {"NotIn"}
    return is_equal and all(labels[rule["key"]] not in rule["values"] for rule in expressions)
