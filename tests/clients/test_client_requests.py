"""Both clients against a real service, which requests are retried, and the wheel of the client on its own."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

import cinestrata_schemas
from cinestrata_client import (
    AsyncClient,
    Client,
    InvalidInputError,
    NotFoundError,
    RetryPolicy,
    TaskFailedError,
    UnavailableError,
    UnreachableError,
)
from cinestrata_schemas.tasks import TaskSpec, VideoSpec
from cinestrata_schemas.videos import VideoPatch
from service.celery_worker import probe
from service.core.settings import Settings
from tests.api.browser import serve
from tests.api.conftest import rendered_world
from trainer.worker.learning_job import run_learning_job


def _task(client: Client, folder: Path, name: str, videos: int = 1) -> str:
    specs = []
    for number in range(videos):
        path = folder / f"{name} {number}.mp4"
        path.write_bytes(f"{name} {number}".encode())
        specs.append(VideoSpec(uri=client.upload_file(path).uri, captions=[f"{name} number {number}"]))
    return client.create_task(TaskSpec(name=name, videos=specs)).id


def test_uploaded_videos_become_a_task_whose_pages_are_iterated(address: str, tmp_path: Path) -> None:
    with Client(address) as client:
        task = _task(client, tmp_path, "kitchen", videos=3)
        assert client.get_task(task).counts.videos == 3
        listed = [video.captions for video in client.iter_videos(task=task, limit=1)]
        assert listed == [[f"kitchen number {number}"] for number in range(3)]
        assert task in [entry.id for entry in client.iter_tasks(limit=1)]
        video = client.list_videos(task=task).videos[0]
        edited = client.edit_video(video.id, VideoPatch(captions=["eggs are whisked"]))
        assert edited.captions == client.get_video(video.id).captions == ["eggs are whisked"]


def test_async_client_does_the_same(address: str, tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "street.mp4"
        path.write_bytes(b"street")
        async with AsyncClient(address) as client:
            upload = await client.upload_file(path)
            spec = TaskSpec(name="street", videos=[VideoSpec(uri=upload.uri)])
            task = await client.create_task(spec)
            assert [video.task_id async for video in client.iter_videos(task="street", limit=1)] == [task.id]
            assert (await client.cancel_task(task.id)).state == "cancelled"
            with pytest.raises(TaskFailedError, match="cancelled"):
                await client.wait_for_task(task.id)
            events = [event.kind async for event in client.watch_task(task.id)]
            assert events[0] == "state"
            with pytest.raises(NotFoundError):
                await client.get_video("nobody")

    asyncio.run(run())


def test_errors_carry_the_problem(address: str) -> None:
    with Client(address) as client:
        with pytest.raises(NotFoundError) as missing:
            client.get_task("tsk_nobody/../x")
        assert missing.value.type == "urn:cinestrata:problem:not-found"
        assert missing.value.request_id
        with pytest.raises(InvalidInputError) as invalid:
            client.list_tasks(limit=0)
        (field,) = invalid.value.errors
        assert (field.field, field.hint) == ("limit", "Send at least 1.")


def test_wait_ends_at_the_timeout(address: str, tmp_path: Path) -> None:
    with Client(address) as client:
        task = _task(client, tmp_path, "waiting")
        with pytest.raises(TimeoutError, match="queued"):
            client.wait_for_task(task, timeout=0)


@pytest.mark.parametrize(
    ("base_url", "shown"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("http://127.0.0.1:9/search/", "http://127.0.0.1:9/search"),
        ("http://user:s3cret@127.0.0.1:9/", "http://127.0.0.1:9"),
    ],
)
def test_unreachable_service_is_named_without_its_password(base_url: str, shown: str) -> None:
    async def ask() -> None:
        async with AsyncClient(base_url, retries=RetryPolicy(max_retries=0)) as client:
            await client.livez()

    with Client(base_url, retries=RetryPolicy(max_retries=0)) as client:
        for call in (client.livez, lambda: asyncio.run(ask())):
            with pytest.raises(UnreachableError) as caught:
                call()
            assert caught.value.base_url == shown
            assert str(caught.value).startswith(f"GET {shown}/v1/livez: ")
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key", ["schlüssel", "secret\n", "secret\x00"])
def test_key_that_a_header_cannot_have_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as refused:
        Client(api_key=key)
    assert key.strip() not in str(refused.value)


def test_answer_of_a_later_service_is_understood(address: str, tmp_path: Path) -> None:
    with Client(address) as client:
        task = _task(client, tmp_path, "attic")
        details = client.get_task(task).model_dump(mode="json")
    later = details | {"state": "thinking", "mood": 1, "remedy": {"name": "wait", "id": "t", "why": "x"}}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=later))
    read = Client("http://service", transport=transport).get_task(task)
    assert read.state == "thinking"
    assert read.remedy is not None
    assert read.remedy.name == "wait"


SPEC = TaskSpec(name="kitchen", videos=[VideoSpec(uri="a.mp4")])
IN_DOUBT = {
    "type": "urn:cinestrata:problem:commit-not-confirmed",
    "title": "x",
    "status": 503,
    "detail": "x",
    "instance": "/",
}
Answer = httpx.Response | Exception


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's pauses, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


def _answering_client(answers: Sequence[Answer]) -> tuple[Client, list[httpx.Request]]:
    requests: list[httpx.Request] = []
    remaining = list(answers)

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = remaining.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://service", transport=httpx.MockTransport(respond)), requests


def _busy(status: int = 429, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers, json={})


def test_pause_is_that_of_the_service(pauses: list[float]) -> None:
    busy = [_busy(**{"Retry-After": "7"}), _busy(503, **{"Retry-After": "2"})]
    client, requests = _answering_client([*busy, httpx.Response(200, json={})])
    client.livez()
    assert pauses == [7, 2]
    assert len(requests) == 3


def test_requests_carry_the_number_of_the_last_edit() -> None:
    deleted = {"deleted": [], "not_found": []}
    answers = [
        httpx.Response(200, json=deleted, headers=[("Cinestrata-Change-Sequence", number)])
        for number in ("12", "9")
    ]
    client, requests = _answering_client([*answers, httpx.Response(200, json={"status": "ok"})])
    client.delete_video("x")
    client.delete_video("y")
    client.livez()
    assert [request.headers.get("Cinestrata-Change-Sequence") for request in requests] == [None, "12", "12"]


def test_long_pause_ends_the_retries(pauses: list[float]) -> None:
    client, _ = _answering_client([_busy(503, **{"Retry-After": "3600"})])
    with pytest.raises(UnavailableError) as refused:
        client.livez()
    assert (refused.value.retry_after, pauses) == (3600, [])


@pytest.mark.parametrize(
    ("call", "attempts"),
    [
        (lambda c: c.livez(), 4),
        (lambda c: c.delete_video("x"), 4),
        (lambda c: c.create_task(SPEC), 4),
        (lambda c: c.cancel_task("x"), 1),
    ],
)
def test_lost_connection_retries_only_idempotent_requests(
    pauses: list[float], call: Callable[[Client], Any], attempts: int
) -> None:
    client, requests = _answering_client([httpx.ReadError("lost")] * 4)
    with pytest.raises(UnreachableError, match="lost"):
        call(client)
    assert len(requests) == attempts
    assert len({request.headers.get("Idempotency-Key") for request in requests}) == 1


def test_unconfirmed_commit_is_retried_only_with_a_key(pauses: list[float]) -> None:
    client, requests = _answering_client([httpx.Response(503, json=IN_DOUBT)] * 5)
    with pytest.raises(UnavailableError):
        client.cancel_task("x")
    assert len(requests) == 1
    with pytest.raises(UnavailableError):
        client.create_task(SPEC)
    assert len(requests) == 5


def test_error_without_a_problem_document_is_described(pauses: list[float]) -> None:
    client, _ = _answering_client([httpx.Response(502, text="<html>Bad gateway</html>")])
    with pytest.raises(Exception, match="502 Bad Gateway"):
        client.livez()


def test_unreadable_response_is_retried_like_a_lost_connection(pauses: list[float]) -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))

    client = Client("http://service", transport=httpx.MockTransport(respond))
    with pytest.raises(UnreachableError, match="/v1/livez: "):
        client.livez()
    assert len(pauses) == 3


__all__ = ["rendered_world"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients" / "python"
BLOCKS = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def learning_service(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a service whose worker is a thread of this process."""
    threads: list[threading.Thread] = []

    def work(task_id: str) -> None:
        probe(task_id)
        run_learning_job(task_id)
        client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]

    def start(task_id: str) -> None:
        threads.append(threading.Thread(target=work, args=(task_id,)))
        threads[-1].start()

    monkeypatch.setattr("service.tasks.broker.send_probe", start)
    with serve(client.app) as url:
        yield url
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_quick_start_of_the_readme_runs(
    configured: Settings,
    learning_service: str,
    rendered_world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clips = sorted(rendered_world.rglob("*.mp4"))
    for name, clip in zip(("taxi.mp4", "bus.mp4"), (clips[0], clips[-1]), strict=True):
        shutil.copy(clip, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        assert "http://127.0.0.1:8000" in block
        exec(compile(block.replace("http://127.0.0.1:8000", learning_service), "README.md", "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out.splitlines()
    assert "a taxi turns left at night" in "".join(printed)


@pytest.mark.slow
def test_wheel_contains_the_client_alone_and_needs_two_packages(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True, timeout=120
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 200_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "cinestrata_client",
        "cinestrata_schemas",
    }
    assert {"cinestrata_client/py.typed", "cinestrata_schemas/py.typed"} <= set(names)
    assert f"\nVersion: {cinestrata_schemas.__version__}\n" in metadata
    assert set(re.findall(r"^Requires-Dist: (\w+)", metadata, re.MULTILINE)) == {"httpx", "pydantic"}


def test_client_imports_nothing_of_the_service() -> None:
    code = (
        "import sys; import cinestrata_client; "
        "loaded = {m.partition('.')[0] for m in sys.modules}; "
        "print(sorted(loaded & {'service', 'api', 'torch', 'sqlalchemy', 'fastapi'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
