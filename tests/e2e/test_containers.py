"""The whole deployment in real containers: images, Compose file, health checks, crashes, restarts.

Needs a container engine with Compose and the three base images (present or pullable); skipped otherwise. The image
build downloads about 3 GB the first time.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml

from tests.e2e.conftest import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
API_KEY = "key-of-the-container-test"
PASSWORD = "pa$$word #1"  # $ and # need single quotes in the environment file
PRODUCT = ("api", "worker-cpu", "worker-gpu")
BASE_IMAGES = ("python:3.11-slim-bookworm", "redis:7-alpine", "postgres:16-alpine")
DOMAINS = ("street", "sea", "kitchen-table")
UID = 10001
REVISION = "0123456789abcdef0123456789abcdef01234567"
OBSERVABILITY = ("--profile", "observability")

until = partial(Machine.until, seconds=600)


def require_engine() -> None:
    """Skip the test where containers cannot run."""
    if shutil.which("docker") is None:
        pytest.skip("no docker command")
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip(f"`{' '.join(command)}` fails: no container engine with Compose")
    require_images(*BASE_IMAGES)


def require_images(*images: str) -> None:
    """Pull images that are not present; skip the test if that fails."""
    for image in images:
        present = ["docker", "image", "inspect", image]
        if subprocess.run(present, capture_output=True, check=False).returncode:
            pull = ["docker", "pull", "--quiet", image]
            if subprocess.run(pull, capture_output=True, check=False).returncode:
                pytest.skip(f"the image {image} is neither present nor can it be pulled")


class Deployment:
    """One Compose project of the repository's own files, with a media folder and an environment file of its own."""

    def __init__(self, folder: Path) -> None:
        self.name = f"cinestrata-test-{uuid.uuid4().hex[:8]}"
        self.media = folder / "media"
        self.media.mkdir()
        port = Machine.free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.environment = folder / "environment"
        self.environment.write_text(
            f"POSTGRES_PASSWORD='{PASSWORD}'\nCINESTRATA_API_KEY={API_KEY}\nCINESTRATA_MEDIA={self.media}\n"
            f"CINESTRATA_PORT={port}\nCINESTRATA_BACKBONE=tiny\nCINESTRATA_WEIGHTS={folder / 'weights'}\n"
            f"REVISION={REVISION}\n"
        )
        self.client = httpx.Client(base_url=self.url, headers={"X-API-Key": API_KEY}, timeout=60)

    def compose(self, *arguments: str, check: bool = True) -> str:
        """Run ``docker compose`` on the project and return its standard output."""
        command = ["docker", "compose", "--ansi", "never", "--project-name", self.name]
        command += ["--env-file", str(self.environment)]
        done = subprocess.run(
            [*command, "--file", str(ROOT / "docker-compose.yml"), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def python(self, service: str, code: str) -> str:
        """Run Python code inside a running container of the project."""
        return self.compose("exec", "-T", service, "python", "-c", code)

    def volumes(self) -> set[str]:
        """Return the names of the engine's volumes."""
        listed = subprocess.run(
            ["docker", "volume", "ls", "--quiet"], capture_output=True, text=True, check=True
        )
        return set(listed.stdout.split())

    def health(self) -> dict[str, str]:
        """Return the health of each running service, as the engine reports it."""
        lines = self.compose("ps", "--format", "json").splitlines()
        return {service["Service"]: service["Health"] for service in map(json.loads, lines)}

    def task(self, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/tasks/{task_id}").raise_for_status().json()
        return found

    def post_domain(self, domain: str, epochs: int = 3) -> str:
        """Post a domain whose files lie in the media folder; return the identifier of its task."""
        lines = (self.media / domain / "manifest.jsonl").read_text().splitlines()
        videos = [json.loads(line) for line in lines]
        for video in videos:
            video["uri"] = f"{domain}/{video.pop('file', None) or video.pop('uri')}".replace(
                f"{domain}/{domain}/", f"{domain}/"
            )
        body = {"name": domain, "method": "strata", "videos": videos, "settings": {"epochs": epochs}}
        posted = self.client.post("/tasks", json=body)
        assert posted.status_code == 202, posted.text
        task_id: str = posted.json()["id"]
        return task_id

    def wait_until_ready(self, task_id: str) -> dict[str, Any]:
        def is_settled() -> bool:
            state = self.task(task_id)["state"]
            assert state not in ("failed", "cancelled"), self.task(task_id)
            return bool(state == "ready")

        until(is_settled, f"task {task_id} is ready")
        ready = self.task(task_id)
        # An API process loads a release after the worker has published it; until then it answers 503 or 404.
        search = {"q": "a", "task": ready["name"]}
        until(lambda: self.client.get("/search", params=search).is_success, f"task {task_id} is searched")
        return ready

    def restart_count(self, service: str) -> int:
        """How often the engine has restarted the container of a service."""
        container = self.compose("ps", "--quiet", service).strip()
        command = ["docker", "inspect", "--format", "{{.RestartCount}}", container]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def log_lines(self) -> list[str]:
        """Log lines of the containers that run the product; `docker compose logs` adds control characters."""
        lines: list[str] = []
        for container in self.compose("ps", "--all", "--quiet", *PRODUCT, "migrate").split():
            command = ["docker", "logs", container]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            lines += (done.stdout + done.stderr).splitlines()
        return lines

    def search(self, text: str) -> list[tuple[str, float]]:
        answer = self.client.get("/search", params={"q": text, "k": 5}).raise_for_status().json()
        return [(result["video_id"], result["score"]) for result in answer["results"]]


def assert_json(lines: list[str]) -> None:
    """Assert that every log line is a JSON object."""
    assert lines
    assert [line for line in lines if not re.fullmatch(r"\{.*\}", line)] == []
    assert all(isinstance(json.loads(line), dict) for line in lines)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A healthy deployment of the unchanged Dockerfile and Compose file; removed with its volumes at the end."""
    require_engine()
    from tests.drawn_videos import write_domains

    folder = tmp_path_factory.mktemp("containers")
    for parent in (folder, folder.parent):
        parent.chmod(0o755)  # the containers read the media folder under another user
    deployment = Deployment(folder)
    write_domains(deployment.media, domains=DOMAINS, train=9, val=3, test=6)
    for path in (deployment.media, *deployment.media.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    volumes = deployment.volumes()
    try:
        deployment.compose("up", "--build", "--wait", "--quiet-pull")
        yield deployment
    finally:
        deployment.client.close()
        logs = deployment.compose("logs", "--no-color", check=False)
        (folder / "containers.log").write_text(logs)
        down = ("down", "--volumes", "--rmi", "local", "--timeout", "20")
        deployment.compose(*OBSERVABILITY, *down, check=False)
    assert deployment.volumes() == volumes, "a volume of the deployment is left over"


@pytest.fixture(scope="module")
def captions(deployment: Deployment) -> list[str]:
    """Six captions of the first domain, which the deployment has learned."""
    ready = deployment.wait_until_ready(deployment.post_domain(DOMAINS[0]))
    assert ready["trained"]
    lines = (deployment.media / DOMAINS[0] / "manifest.jsonl").read_text().splitlines()
    return [json.loads(line)["captions"][0] for line in lines][:6]


def test_every_service_becomes_healthy(deployment: Deployment) -> None:
    health = deployment.health()
    assert set(health) == {*PRODUCT, "redis", "postgres"}
    assert set(health.values()) == {"healthy"}


@pytest.mark.parametrize("service", PRODUCT)
def test_container_has_no_more_rights_than_documented(deployment: Deployment, service: str) -> None:
    status = deployment.python(service, "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == [str(UID)] * 4
    assert {fields[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")} == {"0" * 16}
    assert fields["NoNewPrivs"].strip() == "1"
    attempt = "import pathlib\ntry: pathlib.Path('{}').touch()\nexcept OSError as error: print(error.errno)"
    assert deployment.python(service, attempt.format("/opt/file")).strip() == "30", "the root is read-only"
    assert deployment.python(service, attempt.format("/media/file")).strip() == "30", "videos are read-only"
    assert deployment.python(service, attempt.format("/data/file")).strip() == "", "the volume is writable"
    deployment.python(service, "import pathlib; pathlib.Path('/data/file').unlink()")


def assert_same_answers(
    found: list[list[tuple[str, float]]], expected: list[list[tuple[str, float]]]
) -> None:
    """Return the same videos in the same order.

    The last bit of a score depends on the domains that were encoded together.
    """
    assert [[video for video, _ in answer] for answer in found] == [
        [video for video, _ in answer] for answer in expected
    ]
    for answer, former in zip(found, expected, strict=True):
        assert [score for _, score in answer] == pytest.approx([score for _, score in former], abs=1e-6)


def test_task_resumes_after_its_worker_was_killed(deployment: Deployment, captions: list[str]) -> None:
    before = [deployment.search(caption) for caption in captions]
    task_id = deployment.post_domain(DOMAINS[1], epochs=40)
    until(lambda: (deployment.task(task_id)["progress"]["epoch"] or 0) >= 1, "the task has learned an epoch")
    assert deployment.task(task_id)["state"] == "training"
    # The engine restarts a container whose main process dies, but not one that `docker kill` has stopped.
    deployment.python(
        "worker-gpu",
        "import os, pathlib, signal\n"
        "for entry in pathlib.Path('/proc').glob('[0-9]*'):\n"
        "    command = (entry / 'cmdline').read_bytes().split(b'\\0')\n"
        "    if b'worker' in command and b'gpu' in command and not command[0].endswith(b'init'):\n"
        "        os.kill(int(entry.name), signal.SIGKILL)\n",
    )
    assert_same_answers([deployment.search(caption) for caption in captions], before)
    deployment.wait_until_ready(task_id)
    assert deployment.restart_count("worker-gpu") >= 1
    until(lambda: set(deployment.health().values()) == {"healthy"}, "the worker is healthy again")


def test_tasks_survive_a_redis_that_loses_its_volume(deployment: Deployment, captions: list[str]) -> None:
    deployment.compose("stop", "worker-cpu", "worker-gpu")
    task_id = deployment.post_domain(DOMAINS[2])
    deployment.compose("rm", "--stop", "--force", "redis")
    subprocess.run(["docker", "volume", "rm", f"{deployment.name}_redis"], capture_output=True, check=True)
    deployment.compose("up", "--wait", "--no-build")
    deployment.wait_until_ready(task_id)


def test_searches_answer_the_same_after_down_and_up(deployment: Deployment, captions: list[str]) -> None:
    before = [deployment.search(caption) for caption in captions]
    volumes = deployment.volumes()
    assert_json(deployment.log_lines())
    deployment.compose("down", "--timeout", "30")
    deployment.compose("up", "--wait", "--no-build")
    assert_same_answers([deployment.search(caption) for caption in captions], before)
    assert deployment.volumes() == volumes, "containers that were made again bring no new volumes"
    assert_json(deployment.log_lines())


@pytest.fixture(scope="module")
def prometheus(deployment: Deployment) -> Iterator[Callable[[str], Any]]:
    """Prometheus of the profile ``observability``: a function that returns the data of a path of its API."""
    require_images(
        yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["image"]
    )
    key = deployment.client.post("/keys", json={"name": "prometheus", "scope": "search"}).json()["key"]
    with deployment.environment.open("a") as environment:
        environment.write(f"METRICS_KEY={key}\n")
    deployment.compose(*OBSERVABILITY, "up", "--wait", "--no-build", "prometheus")

    def read(path: str) -> Any:
        address = f"http://127.0.0.1:9090/api/v1/{path}"
        answer = json.loads(deployment.compose("exec", "-T", "prometheus", "wget", "-q", "-O", "-", address))
        assert answer["status"] == "success", answer
        return answer["data"]

    yield read
    deployment.compose("rm", "--stop", "--force", "prometheus")


def test_prometheus_scrapes_the_api_and_evaluates_every_rule(
    deployment: Deployment, prometheus: Callable[[str], Any]
) -> None:
    check = ("promtool", "check", "config", "/etc/prometheus/prometheus.yml")
    checked = deployment.compose("exec", "-T", "prometheus", *check)
    assert "SUCCESS" in checked
    until(
        lambda: [target["health"] for target in prometheus("targets")["activeTargets"]] == ["up"],
        "Prometheus has scraped the API",
    )
    expected = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]

    def rules() -> dict[str, str]:
        return {rule["name"]: rule["health"] for rule in prometheus("rules")["groups"][0]["rules"]}

    until(lambda: set(rules().values()) == {"ok"}, "every rule was evaluated")
    assert set(rules()) == {rule["alert"] for rule in expected}


def test_every_query_of_the_dashboard_finds_series(
    deployment: Deployment, captions: list[str], prometheus: Callable[[str], Any]
) -> None:
    if DOMAINS[1] not in {task["name"] for task in deployment.client.get("/tasks").json()}:
        deployment.wait_until_ready(deployment.post_domain(DOMAINS[1]))  # two domains: forgetting is measured
    panels = json.loads((ROOT / "deploy/grafana/cinestrata.json").read_text())["panels"]
    waiting = {target["expr"] for panel in panels for target in panel["targets"]}
    without_series = {expression for expression in waiting if "_gpu_" in expression}
    assert len(waiting) > len(without_series) > 0

    def finds_series(expression: str) -> bool:
        query = quote(expression.replace("$__rate_interval", "1m"), safe="")
        return bool(prometheus(f"query?query={query}")["result"])

    def is_answered() -> bool:
        deployment.search(captions[0])
        waiting.difference_update([*filter(finds_series, waiting)])
        return waiting <= without_series

    until(is_answered, "every query has found a series")
