"""The Milvus tests on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.milvus import URI_VARIABLE

ROOT = Path(__file__).parents[3]
MODULES = (
    "tests/index/milvus",
    "tests/index/shards",
    "tests/api/test_milvus_library.py",
    "tests/trainer/worker/test_learning_job.py",
)


@pytest.fixture
def standalone_uri(tmp_path: Path) -> Iterator[str]:
    """URI of a real server: from ``CINESTRATA_TEST_MILVUS_URI``, or started by the package ``milvus``."""
    if uri := os.environ.get(URI_VARIABLE):
        yield uri
        return
    milvus = pytest.importorskip(
        "milvus", reason=f"neither {URI_VARIABLE} nor the package milvus: pip install milvus==2.3.5"
    )
    server = milvus.default_server
    server.set_base_dir(str(tmp_path / "server"))
    server.start()
    try:
        yield f"http://127.0.0.1:{server.listen_port}"
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_milvus_tests_pass_on_standalone_server(standalone_uri: str) -> None:
    """Run the tests, which use milvus-lite by default, on a real server.

    Milvus itself is tested here only: milvus-lite has neither partitions that are loaded one by one, nor half
    precision, nor several processes. Start it in one of two ways:

    - ``pip install milvus==2.3.5`` (a standalone server as a wheel), then ``pytest -m slow`` on this file;
    - ``CINESTRATA_TEST_MILVUS_URI=http://host:19530 pytest -m slow`` on this file, for any server.

    Skipped, with that hint, if there is neither.
    """
    environment = {**os.environ, URI_VARIABLE: standalone_uri}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-rs", *MODULES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-5000:]
