"""Install a release's wheels in empty environments, and use them: start, ingest, search, stop, benchmark.

``make release`` runs this. The application's environment takes about 7 GB in the temporary folder (``TMPDIR``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from build_distributions import NotReleasable

_READY = "Cinestrata is up at "
_DRAW_VIDEOS = """
import sys
from pathlib import Path
from media.scenes.scene_domains import SCENE_DOMAINS, make_scenes
from media.scenes.scene_files import write_scenes
scenes = {name: make_scenes(name, train=8, val=2, test=4) for name in sorted(SCENE_DOMAINS)[:2]}
write_scenes(Path(sys.argv[1]), scenes, workers=2)
"""
_SEARCH = """
import json, sys
import httpx
from cinestrata_client import Client
url, query = sys.argv[1:]
with Client(url) as client:
    answer = client.search(query, k=10)
print(json.dumps({
    "found": [result.video_id for result in answer.results],
    "pages": [httpx.get(url + path).status_code for path in ("/", "/admin", "/docs")],
    "version": httpx.get(url + "/v1/openapi.json").json()["info"]["version"],
}))
"""


class Environment:
    """A new virtual environment whose commands see nothing of this one."""

    def __init__(self, folder: Path, *requirements: str) -> None:
        self.folder = folder
        self._run(sys.executable, "-m", "venv", folder / "venv")
        options = ("-q", "--disable-pip-version-check", "--no-input", "-c", "constraints.txt")
        self._run(folder / "venv/bin/python", "-m", "pip", "install", *options, *requirements)

    def run(self, command: str, *arguments: str | Path) -> str:
        """Run one of the environment's commands in its folder, and return the standard output.

        Raises:
            NotReleasable: The command fails; the message contains the end of its output.
        """
        return self._run(self.folder / "venv/bin" / command, *arguments, cwd=self.folder, env=self.variables)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for the commands."""
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LANG") if name in os.environ}
        return {**kept, "HOME": str(self.folder)}

    @contextmanager
    def service(self, data: Path) -> Iterator[str]:
        """Run ``cinestrata up`` on a data folder during the ``with`` statement, and yield its URL."""
        argv = [self.folder / "venv/bin/cinestrata", "up", "--data", data, "--port", "0"]
        with subprocess.Popen(
            argv, cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                if not line.startswith(_READY):
                    raise NotReleasable("`cinestrata up` does not start from the wheel.")
                yield line.removeprefix(_READY).strip()
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)
        if process.returncode:
            raise NotReleasable(f"`cinestrata up` ended with status {process.returncode} after Ctrl-C.")

    @staticmethod
    def _run(*command: str | Path, **options: Any) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        if done.returncode:
            shown = " ".join(map(str, command[:4]))
            raise NotReleasable(f"`{shown}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout


def try_distributions(out: Path, folder: Path) -> None:
    """Install and use a release's wheels.

    Raises:
        NotReleasable: A step fails.
    """
    (wheel,), (client_wheel,) = (
        list(out.glob(f"{name}-*.whl")) for name in ("cinestrata", "cinestrata_client")
    )
    version = wheel.name.split("-")[1]
    with _step("Install the application"):
        application = Environment(folder / "application", f"{wheel.resolve()}[cpu]")
    with _step("Install the client"):
        client = Environment(folder / "client", str(client_wheel.resolve()))
    videos, data = folder / "videos", folder / "data"
    with _step("Start, ingest, search and stop"):
        _expect(application.run("cinestrata", "--version").strip(), f"cinestrata {version}")
        application.run("python", "-c", _DRAW_VIDEOS, videos)
        domains = sorted(videos.iterdir())
        with application.service(data) as url:
            for domain in domains:
                application.run("cinestrata", "ingest", domain, "--url", url)
            first = json.loads((domains[0] / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[0])
            query = first["captions"][0]
            answer = json.loads(application.run("cinestrata", "search", query, "--url", url, "--json"))
            seen = json.loads(client.run("python", "-c", _SEARCH, url, query))
        found = [result["video_id"] for result in answer["results"]]
        if first["id"] not in found:
            raise NotReleasable(f"A search for a caption does not find its video {first['id']}: {found}")
        _expect(seen, {"found": found, "pages": [200, 200, 200], "version": version})
        application.run("cinestrata", "doctor", "--data", data)
    with _step("Measure own clips"):
        application.run("cinestrata", "bench", "clips", videos, "--out", folder / "clips")
        application.run("cinestrata", "bench", "run")


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise NotReleasable(f"Found {found} instead of {expected}.")


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Print how many seconds a step takes."""
    begin = time.monotonic()
    yield
    sys.stdout.write(f"{name}: {time.monotonic() - begin:.0f} s\n")
    sys.stdout.flush()


def main(out: Path) -> int:
    """Try the distributions in ``out``; the exit status is 1 if a step fails."""
    with tempfile.TemporaryDirectory(prefix="cinestrata-release-") as folder:
        try:
            try_distributions(out, Path(folder))
        except NotReleasable as error:
            sys.stderr.write(f"Not released. {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
