"""docker-compose.yml and its overlays, deploy/kubernetes, their images and health check, and the monitoring."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url
from typer.testing import CliRunner

from cli.main import app
from service.library import prometheus_metrics

PRODUCT = ("api", "worker-cpu", "worker-gpu")
REQUIRED = {"POSTGRES_PASSWORD", "CINESTRATA_API_KEY", "CINESTRATA_MEDIA"}


def test_services_start_after_the_migration(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {*PRODUCT, "migrate", "redis", "postgres", "prometheus", "grafana"}
    assert {name for name, service in services.items() if service.get("profiles") == ["observability"]} == {
        "prometheus",
        "grafana",
    }
    for name in PRODUCT:
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert services[name]["build"]["target"] == name
        assert services[name]["stop_grace_period"]


def test_services_have_no_more_rights_than_they_need(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert service["restart"] in ("unless-stopped", "no")
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}
        assert service["pids_limit"]
        assert name == "api" or "CINESTRATA_API_KEY" not in service.get("environment", {})
    for name in (*PRODUCT, "migrate"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    # An operator who opens the API to a network does not open Grafana.
    assert {
        name: service["ports"][0].rpartition("}:$")[0]
        for name, service in services.items()
        if "ports" in service
    } == {"api": "${CINESTRATA_BIND:-127.0.0.1", "grafana": "${GRAFANA_BIND:-127.0.0.1"}


def test_passwords_are_not_part_of_urls(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in (value or "") or name in (
                "PGPASSWORD",
                "POSTGRES_PASSWORD",
                "GF_SECURITY_ADMIN_PASSWORD",
            )
            assert "API_KEY" not in (value or "") or name == "CINESTRATA_API_KEY"
    environment = services["api"]["environment"]
    assert make_url(environment["CINESTRATA_DATABASE_URL"]).password is None
    assert environment["PGPASSWORD"] == services["postgres"]["environment"]["POSTGRES_PASSWORD"]


def test_environment_example_names_every_variable_and_no_secret_has_a_default(root: Path) -> None:
    text = (root / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+):\?", text)) == REQUIRED
    example = dict(re.findall(r"^(\w+)=(.*)$", (root / ".env.example").read_text(), re.MULTILINE))
    assert {name for name, value in example.items() if not value} == REQUIRED | {
        "CINESTRATA_SOURCES",
        "CINESTRATA_SPEECH_MODEL",
        "GRAFANA_PASSWORD",
    }
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)


@pytest.mark.parametrize("name", ["docker/Dockerfile", "docker-compose.yml"])
def test_commands_of_images_exist(root: Path, name: str) -> None:
    text = (root / name).read_text()
    commands = [re.findall(r"[\w-]+", found) for found in re.findall(r"\[\W*cinestrata\W+([^\]]*)\]", text)]
    assert commands
    for command in commands:
        help_page = CliRunner().invoke(app, [command[0], "--help"])
        assert help_page.exit_code == 0
        assert all(option in help_page.output for option in command if option.startswith("--"))


def test_every_image_has_a_health_check_and_an_unprivileged_user(root: Path) -> None:
    stages = re.split(r"^FROM ", (root / "docker" / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    recipes: dict[str, str] = {}
    for stage in stages:
        base, name = re.match(r"(\S+) AS (\S+)", stage).groups()  # type: ignore[union-attr]
        base = base.replace("${ACCELERATOR}", "cpu")
        recipes[name] = recipes.get(base, "") + stage
    for name in PRODUCT:
        assert "USER cinestrata" in recipes[name]
        for label in ("version", "revision"):
            assert f"org.opencontainers.image.{label}=${{{label.upper()}}}" in recipes[name]
        assert "HEALTHCHECK" in recipes[name]


MILVUS_SERVICES = ("milvus", "milvus-etcd", "milvus-minio")


@pytest.fixture(scope="module")
def overlay(root: Path) -> dict[str, Any]:
    """The content of the overlay."""
    content: dict[str, Any] = yaml.safe_load((root / "docker-compose.milvus.yml").read_text())
    return content


@pytest.mark.parametrize("name", MILVUS_SERVICES)
def test_milvus_services_are_pinned_healthy_and_private(overlay: dict[str, Any], name: str) -> None:
    service = overlay["services"][name]
    assert re.search(r":(v\d+\.\d+\.\d+|RELEASE\.\S+)$", service["image"])
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert "no-new-privileges:true" in service["security_opt"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert "ports" not in service
    (volume,) = service["volumes"]
    assert volume.split(":")[0] in overlay["volumes"]
    assert all(after["condition"] == "service_healthy" for after in service.get("depends_on", {}).values())


def test_overlay_secrets_have_no_default_and_the_example_names_them(root: Path) -> None:
    text = (root / "docker-compose.milvus.yml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == set(re.findall(r"\$\{(\w+)", text)) == {"MILVUS_PASSWORD", "MILVUS_STORAGE_PASSWORD"}
    example = (root / ".env.example").read_text()
    assert all(re.search(rf"^#{name}=$", example, re.MULTILINE) for name in required)


@pytest.fixture(scope="module")
def mounted(root: Path, compose: dict[str, Any]) -> dict[str, dict[str, Path]]:
    """For each service of the profile the files that it sees, by path in the container."""
    return {
        name: {
            entry["target"]: root / compose["configs"][entry["source"]]["file"]
            for entry in compose["services"][name]["configs"]
        }
        for name in ("prometheus", "grafana")
    }


def test_prometheus_reads_its_rules_and_scrapes_the_api_with_a_key_of_its_own(
    compose: dict[str, Any], mounted: dict[str, dict[str, Path]]
) -> None:
    service = compose["services"]["prometheus"]
    config_path = next(
        part.partition("=")[2] for part in service["command"] if part.startswith("--config.file=")
    )
    config = yaml.safe_load(mounted["prometheus"][config_path].read_text())
    folder = config_path.rpartition("/")[0]
    assert {f"{folder}/{name}" for name in config["rule_files"]} <= mounted["prometheus"].keys()
    (job,) = config["scrape_configs"]
    (secret,) = service["secrets"]
    assert job["authorization"]["credentials_file"] == secret["target"]
    assert compose["secrets"] == {secret["source"]: {"environment": "METRICS_KEY"}}
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert compose["services"][host]["ports"][0].endswith(f":{port}")


@pytest.mark.parametrize(("password", "status"), [("secret", 0), ("", 1)])
def test_grafana_does_not_start_without_a_password(
    compose: dict[str, Any], password: str, status: int
) -> None:
    service = compose["services"]["grafana"]
    assert service["environment"]["GF_SECURITY_ADMIN_PASSWORD"] == "${GRAFANA_PASSWORD:-}"
    shell, option, script = service["entrypoint"]
    assert script.endswith("; exec /run.sh")
    started = subprocess.run(
        [shell, option, script.replace("$$", "$").replace("/run.sh", "true")],
        env={"GF_SECURITY_ADMIN_PASSWORD": password},
        capture_output=True,
        text=True,
    )
    assert started.returncode == status
    assert ("GRAFANA_PASSWORD" in started.stderr) is bool(status)


def test_only_the_product_reaches_the_database_and_the_broker(compose: dict[str, Any]) -> None:
    def networks(name: str) -> set[str]:
        return {*compose["services"][name].get("networks", ["default"])}

    product = {"api", "worker-cpu", "worker-gpu", "migrate"}
    for store in ("postgres", "redis"):
        sharing = {name for name in compose["services"] if networks(name) & networks(store)}
        assert sharing == {*product, "postgres", "redis"}
    assert networks("prometheus") & networks("api")


# Exported only by a process with a measured library, or with a GPU.
MEASURE_GAUGES = {
    "cinestrata_recall",
    "cinestrata_forgetting",
    "cinestrata_router_accuracy",
    "cinestrata_gpu_memory_used_bytes",
    "cinestrata_gpu_memory_total_bytes",
}
CATALOG_GAUGES = {
    "cinestrata_active_tasks",
    "cinestrata_tasks",
    "cinestrata_shards",
    "cinestrata_vectors",
    "cinestrata_shard_bytes",
    "cinestrata_alerts",
}


@pytest.fixture(scope="module")
def expressions(root: Path) -> list[str]:
    """PromQL expressions of the dashboard and of the alerts."""
    panels = json.loads((root / "deploy/grafana/cinestrata.json").read_text())["panels"]
    rules = yaml.safe_load((root / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [
        rule["expr"] for rule in rules
    ]


def test_expressions_use_exported_metrics(expressions: list[str]) -> None:
    page, _ = prometheus_metrics.render()
    exported = set(re.findall(r"^# HELP (cinestrata_\w+)", page.decode(), re.MULTILINE))
    exported |= CATALOG_GAUGES | MEASURE_GAUGES  # exported only where a catalog exists
    used = {name for expression in expressions for name in re.findall(r"cinestrata_\w+", expression)}
    assert used >= MEASURE_GAUGES
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= exported


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


@pytest.fixture
def health_file(tmp_path: Path) -> Path:
    """Path of a worker's health file, not written yet."""
    return tmp_path / "health.json"


def status(*arguments: str, root: Path, **environment: str) -> int:
    """Exit status of the health check in a clean process."""
    command = [sys.executable, "-S", str(root / "docker" / "healthy.py"), *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL, check=False)
    return done.returncode


def test_api_check_ignores_the_proxy_of_the_container(root: Path) -> None:
    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    proxy = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "no_proxy": ""}
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        environment = proxy | {"CINESTRATA_PORT": str(server.server_port)}
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert status("api", root=root, **environment) == 0
        server.shutdown()
    thread.join()
    assert status("api", root=root, **environment) == 1


@pytest.mark.parametrize(
    ("content", "age_seconds", "expected", "expected_alive"),
    [
        ({"catalog": "ok", "broker": "ok"}, 5, 0, 0),
        ({"catalog": "connection refused", "broker": "ok"}, 5, 1, 0),
        ({"catalog": "ok", "broker": "ok"}, 3600, 1, 1),
        (None, 0, 1, 1),
    ],
    ids=["healthy", "catalog unreachable", "hanging worker", "no file"],
)
def test_worker_check_reads_the_health_file(
    root: Path,
    health_file: Path,
    content: dict[str, str] | None,
    age_seconds: float,
    expected: int,
    expected_alive: int,
) -> None:
    if content is not None:
        health_file.write_text(json.dumps(content))
        written = time.time() - age_seconds
        os.utime(health_file, (written, written))
    assert status("worker", str(health_file), root=root) == expected
    assert status("worker", str(health_file), "--alive", root=root) == expected_alive
