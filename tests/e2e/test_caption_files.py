"""Caption files of the field, from the command line to a search, and the library that an export of it becomes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import write_scene
from tests.caption_files import CASES, NAMES, content_of
from tests.e2e.conftest import Machine

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]  # starts the service

FAST = {"CINESTRATA_BACKBONE": "tiny", "CINESTRATA_METHOD": "analytic"}
# Captions, transcripts, splits, metadata and files in folders; the other formats are read by the same functions.
FORMATS = ("msrvtt.json", "vatex.json", "project-1.json")
DOMAINS = {name: f"d{number}" for number, name in enumerate(FORMATS)}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a drawn video for each name."""
    folder = tmp_path_factory.mktemp("clips")
    for name, scene in zip(NAMES, make_scenes("street", train=len(NAMES), val=0, test=0), strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.move(write_scene(folder, scene), folder / name)
    return folder


def _library(url: str) -> dict[str, dict[str, Any]]:
    """What people have written about each video, by the domain and the end of the path."""
    names = {task["id"]: task["name"] for task in httpx.get(f"{url}/tasks").json()}
    found = {}
    for video in httpx.get(f"{url}/videos", params={"limit": 1000}).json()["videos"]:
        details = httpx.get(f"{url}/videos/{video['id']}").json()
        key = f"{names[video['task_id']]}/{Path(video['uri']).name}"
        found[key] = {
            name: details[name] for name in ("captions", "effective_split", "metadata", "transcript")
        }
    return found


def test_export_of_the_formats_becomes_the_same_library(
    machine: Machine, clips: Path, tmp_path: Path
) -> None:
    process, url = machine.up(tmp_path / "first", FAST)
    for name, domain in DOMAINS.items():
        folder = shutil.copytree(clips, tmp_path / domain)
        (folder / name).write_bytes(content_of(CASES[name][1]))
        done = machine.run("ingest", folder, "--url", url)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        shown = " ".join(done.stdout.split())
        assert f"Captions from {name} ({CASES[name][0]}): " in shown, shown
    first = _library(url)
    for name, domain in DOMAINS.items():
        for path, fields in CASES[name][2].items():
            video = first[f"{domain}/{Path(path).name}"]
            assert video["captions"] == fields.get("captions", [])
            assert video["metadata"] == fields.get("metadata", {})
            assert video["transcript"] == fields.get("transcript", [])
            if "split" in fields and video["captions"]:
                assert video["effective_split"] == fields["split"]
    answer = httpx.get(f"{url}/search", params={"q": "cat sleeps", "k": 20}).json()
    assert {Path(result["uri"]).name for result in answer["results"][:3]} <= {
        "b.mp4",
        "video0.mp4",
        "id_000010_000020.webm",
    }

    out = tmp_path / "out"
    done = machine.run("export", out, "--videos", "--url", url)
    assert done.returncode == 0, done.stderr
    process.terminate()
    process.wait()
    process, url = machine.up(tmp_path / "second", FAST)
    for domain in DOMAINS.values():
        done = machine.run("ingest", out / domain, "--url", url)
        assert done.returncode == 0, (domain, done.stdout, done.stderr)
    assert _library(url) == first
    process.terminate()
    process.wait()
