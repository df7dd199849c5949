"""The client's wheel on its own, and its README's quick start on a service that learns."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import cinestrata_schemas
from service.celery_worker import probe
from service.core.settings import Settings
from tests.api.browser import serve
from tests.api.conftest import rendered_world
from trainer.worker.learning_job import run_learning_job

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
