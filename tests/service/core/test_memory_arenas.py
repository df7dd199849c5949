"""The memory arenas of a process with several threads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

_COUNT_ARENAS = """
import ctypes, sys, threading
from pathlib import Path
from service.core.process_setup import share_memory_arenas

if "share" in sys.argv:
    share_memory_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(6)


def allocate():
    together.wait()
    assert libc.malloc(ctypes.c_size_t(1000))
    together.wait()


threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
assert libc.malloc_info(0, file) == 0
libc.fclose(file)
print(Path(sys.argv[1]).read_text().count("<heap nr="))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc has arenas")
@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, range(3, 8)),
        (["share"], {}, range(2, 3)),
        (["share"], {"MALLOC_ARENA_MAX": "4"}, range(4, 5)),
    ],
    ids=["default", "shared", "set by the operator"],
)
def test_threads_share_two_arenas(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], expected: range
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_ARENAS, str(tmp_path / "arenas.xml"), *arguments],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) in expected
