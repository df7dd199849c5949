"""The blocks of the README and of docs/using.md, executed in their order on an own data folder.

Ports and the path of the virtual environment are substituted, and nothing else. The service runs on the backbone
``tiny``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import httpx
import pytest

from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import write_scene
from tests.deploy.documented_commands import ROOT, shell_blocks
from tests.e2e.conftest import Machine

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,  # starts the service
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]

# A search without a matching video exits with status 3: two clips teach the words of the example to no model.
PRELUDE = """set -euo pipefail
cinestrata() { "$PYTHON" -m cli.main "$@" || { local status=$?; [ "$1" = search ] && [ $status = 3 ]; }; }
"""


def _sequence() -> list[str]:
    """Return the blocks from the start of the service to the backup; Python becomes a call of the interpreter."""
    readme = [block for _, block in shell_blocks("README.md")]
    first = next(number for number, block in enumerate(readme) if "cinestrata up" in block)
    snippet = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert snippet
    python = f"\"$PYTHON\" - <<'END'\n{snippet[1]}END"
    using = [block for _, block in shell_blocks("docs/using.md")]
    return [*readme[first : first + 2], python, *using]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the videos that the documents name."""
    counts = {
        "my-data/media/kitchen": ("kitchen-table", 0, 2),
        "street": ("street", 0, 4),
        "boats": ("sea", 5, 9),
        "more-street": ("street", 4, 6),
        "harbor": ("sea", 0, 3),
        "my-data/media/inbox": ("sea", 3, 5),
    }
    for path, (domain, first, last) in counts.items():
        target = tmp_path / path
        target.mkdir(parents=True)
        lines = []
        for number, scene in enumerate(make_scenes(domain, train=last, val=0, test=0)[first:], 1):
            file = write_scene(target, scene).rename(target / f"{number:04}.mp4")
            file.with_suffix(".txt").write_text("\n".join(scene.captions))
            lines.append(json.dumps({"uri": file.name, "captions": list(scene.captions)}))
        if path == "boats":
            (target / "manifest.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """The environment of a user, with the processes of this checkout."""
    activate = folder / "venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
    sources = os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python")))
    return variables | {"PYTHON": sys.executable, "PYTHONPATH": sources, "CINESTRATA_BACKBONE": "tiny"}


def test_blocks_run_in_their_order(folder: Path, environment: dict[str, str]) -> None:
    port = Machine.free_port()
    start, *blocks = [
        block.replace("8000", str(port)).replace(".venv/bin/activate", "venv/bin/activate")
        for block in _sequence()
    ]
    assert len(blocks) > 7
    url = f"http://127.0.0.1:{port}"
    with (folder / "up.log").open("wb") as log:
        service = subprocess.Popen(
            ["bash", "-c", start.replace("cinestrata up", 'exec "$PYTHON" -m cli.main up', 1)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        Machine.until(
            lambda: Machine.answers(f"{url}/livez") or service.poll() is not None, "the service starts"
        )
        assert service.poll() is None, (folder / "up.log").read_text()
        script = PRELUDE + "\n".join(f"echo '--- block {n}'\n{block}" for n, block in enumerate(blocks))
        outcome = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=800
        )
        assert outcome.returncode == 0, f"{outcome.stdout}\n{outcome.stderr}"
        _check_results(folder, url, outcome.stdout)
    finally:
        service.terminate()
        service.wait()


def _check_results(folder: Path, url: str, output: str) -> None:
    assert re.search(r"^\['.*\.mp4'", output, re.MULTILINE)  # Python
    assert "202 Accepted" in output
    tasks = {task["name"]: task for task in httpx.get(f"{url}/tasks").json()}
    assert {"kitchen", "street 2026", "harbor", "boats"} <= {
        name for name, task in tasks.items() if task["state"] == "ready"
    }
    assert "harbor: 3 new, 0 changed" in output
    assert [sync["name"] for sync in httpx.get(f"{url}/syncs").json()] == ["inbox"]
    # curl writes no line break behind a document.
    starts = [found.start() for found in re.finditer(r'\{"query":', output)]
    answers = [json.JSONDecoder().raw_decode(output, start)[0] for start in starts]
    assert [answer["mode"] for answer in answers] == ["pinned", "latest"]
    assert {result["task"] for result in answers[1]["results"]} == {"kitchen"}
    assert re.search(r"domain.* searched in [\d,]+ ms", output)
    assert re.search(r"^\d+ deleted$", output, re.MULTILINE)
    with tarfile.open(folder / "backup.tar") as archive:
        assert "catalog.sqlite3" in " ".join(archive.getnames())
