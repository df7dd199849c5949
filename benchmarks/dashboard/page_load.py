"""First paint and steady load of the library page in Chromium, for checkouts in alternation.

Each repetition loads the page with an empty browser cache and then leaves it open. The steady CPU time contains all
processes of Chromium, and the process of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

__all__ = ["PageLoad", "main"]

_FILL = Path(__file__).with_name("library_filling.py")
_SERVE = (
    "import sys, uvicorn; from api.app import create_app; "
    "uvicorn.run(create_app(), host='127.0.0.1', port=int(sys.argv[1]), lifespan='off', log_level='error')"
)
# The heat map of Plotly, or a cell of the map.
_MATRIX = "#heat .heatmaplayer image, #heat .heatmaplayer .hm, #heat [data-cell]"
_OBSERVE = f"""
  new MutationObserver((_, observer) => {{
    if (!document.querySelector({json.dumps(_MATRIX)})) return;
    requestAnimationFrame(() => setTimeout(() => {{ window.matrixDrawn = performance.now(); }}));
    observer.disconnect();
  }}).observe(document, {{ childList: true, subtree: true }});
"""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--window-size=1440,900",
)
_TIMEOUT = 600  # seconds
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class PageLoad:
    """One load of the library page.

    Attributes:
        first_paint: First contentful paint, in ms.
        matrix: Time until the matrix is drawn, in ms.
        loaded_bytes: Transferred bytes until the matrix is drawn.
        requests, transferred_bytes: Requests that ended while the page was left open, and their bytes.
        page_cpu, server_cpu: CPU time of Chromium and of the server while the page was left open, in percent of a core.
    """

    first_paint: float
    matrix: float
    loaded_bytes: int
    requests: int
    transferred_bytes: int
    page_cpu: float
    server_cpu: float


def main() -> None:
    """Measure checkouts and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "checkouts", nargs="+", help="name=folder of each checkout, such as before=../old after=."
    )
    parser.add_argument("--domains", type=int, nargs="+", default=[3, 50, 200])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the page is left open")
    parser.add_argument("--out", type=Path, help="file for all measurements as JSON")
    options = parser.parse_args()
    checkouts = {
        name: Path(folder).resolve() for name, _, folder in (c.partition("=") for c in options.checkouts)
    }
    found: dict[tuple[int, str], list[PageLoad]] = {}
    for domains in options.domains:
        with tempfile.TemporaryDirectory() as folder:
            for name, checkout in checkouts.items():
                _run(checkout, [str(_FILL), f"{folder}/{name}", "--domains", str(domains)]).wait()
            for _ in range(options.repetitions):
                for name, checkout in checkouts.items():
                    with _serve(checkout, Path(folder) / name) as (url, pid):
                        found.setdefault((domains, name), []).append(
                            _load(f"{url}/admin", pid, options.seconds)
                        )
    if options.out:
        rows = [
            {"domains": d, "checkout": n, **asdict(load)} for (d, n), loads in found.items() for load in loads
        ]
        options.out.write_text(json.dumps(rows, indent=1))
    print(_table(found))


def _run(checkout: Path, arguments: list[str], **environment: str) -> subprocess.Popen[bytes]:
    env = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen([sys.executable, *arguments], cwd=checkout, env=env)


@contextmanager
def _serve(checkout: Path, data: Path) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = _run(checkout, ["-c", _SERVE, str(port)], CINESTRATA_DATA_DIR=str(data))
    try:
        for _ in range(1200):
            try:
                urlopen(f"{url}/livez").close()  # noqa: S310 (http of this machine)
                break
            except OSError:
                time.sleep(0.1)
        yield url, server.pid
    finally:
        server.terminate()
        server.wait()


def _load(url: str, server: int, seconds: float) -> PageLoad:
    from selenium import webdriver  # a development dependency
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in _FLAGS:
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    options.page_load_strategy = "none"
    browser = webdriver.Chrome(options=options, service=service)
    try:
        _extend_timeout(browser)
        browser.set_script_timeout(_TIMEOUT)
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _OBSERVE})
        browser.get(url)
        WebDriverWait(browser, _TIMEOUT, 0.1).until(lambda b: b.execute_script("return window.matrixDrawn"))
        resources = "return performance.getEntriesByType('resource').map((entry) => entry.transferSize)"
        loaded = browser.execute_script(resources)
        chromium = service.process.pid
        before = _cpu_seconds(_tree(chromium)), _cpu_seconds([server])
        time.sleep(seconds)
        after = _cpu_seconds(_tree(chromium)), _cpu_seconds([server])
        later = browser.execute_script(resources)[len(loaded) :]
        return PageLoad(
            first_paint=_number(
                browser, "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            ),
            matrix=_number(browser, "window.matrixDrawn"),
            loaded_bytes=sum(loaded),
            requests=len(later),
            transferred_bytes=sum(later),
            page_cpu=100 * (after[0] - before[0]) / seconds,
            server_cpu=100 * (after[1] - before[1]) / seconds,
        )
    finally:
        browser.quit()


def _extend_timeout(browser: Any) -> None:
    """Let commands wait for a page whose scripts block it for minutes."""
    browser.command_executor.client_config.timeout = _TIMEOUT


def _number(browser: Any, expression: str) -> float:
    return float(browser.execute_script(f"return {expression}"))


def _tree(root: int) -> list[int]:
    """A process and its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def _table(found: dict[tuple[int, str], list[PageLoad]]) -> str:
    lines = [
        "| domains | checkout | first paint (ms) | matrix drawn (ms) | loaded (kB) | requests | transferred (kB) "
        "| CPU of the page (%) | CPU of the server (%) |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (domains, name), loads in found.items():
        values = {key: statistics.median(asdict(load)[key] for load in loads) for key in asdict(loads[0])}
        lines.append(
            f"| {domains} | {name} | {values['first_paint']:.0f} | {values['matrix']:.0f} "
            f"| {values['loaded_bytes'] / 1000:.0f} | {values['requests']:.0f} "
            f"| {values['transferred_bytes'] / 1000:.1f} | {values['page_cpu']:.1f} | {values['server_cpu']:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
