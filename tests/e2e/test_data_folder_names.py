"""A service on a data folder whose path has the special characters of URLs: all of its files are in this folder."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import write_scene
from tests.e2e.conftest import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # starts the service

ENVIRONMENT = {"CINESTRATA_BACKBONE": "tiny", "CINESTRATA_ROOT_PATH": "/clips"}


def test_service_on_a_folder_with_special_characters(machine: Machine, tmp_path: Path) -> None:
    parent = tmp_path / "NAS #2 my%20clips" / "50%2F50; [é] 🎬"
    data, source = parent / "What now?", tmp_path / "source"
    parent.mkdir(parents=True)
    link = tmp_path / "plain"
    link.symlink_to(parent)
    source.mkdir()
    for number, scene in enumerate(make_scenes("street", train=2, val=0, test=0)):
        write_scene(source, scene).rename(source / f"What? #{number} 100%.mp4")

    service, url = machine.up(data, ENVIRONMENT)
    ingested = machine.run("ingest", source, "--url", url, "--name", "street", env=ENVIRONMENT)
    assert (ingested.returncode, "ready" in ingested.stdout) == (0, True), ingested.stderr
    assert httpx.get(f"{url}/library").json()["broker"] == "ok"
    videos = httpx.get(f"{url}/videos").json()["videos"]
    assert sorted(Path(video["uri"]).name for video in videos) == ["What? #0 100%.mp4", "What? #1 100%.mp4"]
    assert httpx.head(f"{url}{videos[0]['stream_url']}").status_code == 200
    assert httpx.get(f"{url}/", follow_redirects=True).status_code == 200
    service.terminate()
    assert service.wait(60) == 0
    assert (data / "catalog.sqlite3").is_file()
    assert [folder.name for folder in parent.iterdir()] == ["What now?"]
    assert {path.name for path in tmp_path.iterdir()} == {parent.parent.name, "plain", "source"}

    again, url = machine.up(link / "What now?", ENVIRONMENT)
    assert [video["id"] for video in httpx.get(f"{url}/videos").json()["videos"]] == [v["id"] for v in videos]
    backup = parent / "backup #1.tar"
    assert machine.run("snapshot", backup, "--data", data, env=ENVIRONMENT).returncode == 0
    again.terminate()
    again.wait(60)
    restored = parent / "restored? 100%"
    assert machine.run("restore", backup, "--data", restored, env=ENVIRONMENT).returncode == 0
    listed = machine.run("api", "GET", "/videos", "--data", restored, env=ENVIRONMENT)
    assert {video["id"] for video in json.loads(listed.stdout)["videos"]} == {video["id"] for video in videos}
