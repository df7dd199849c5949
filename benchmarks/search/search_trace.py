"""Count what one ``GET /search`` passes: files and functions of the project, and the record types that it creates.

``python -m benchmarks.search.search_trace DATA_FOLDER QUERY`` serves the folder in this process, searches twice, and
traces the second search in all threads that run it. It is a measure of how much a maintainer must read.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType

import httpx

_ROOT = Path(__file__).parents[2]
_LIBRARIES = f"{os.sep}.venv{os.sep}"
_BACKGROUND = {"follow-index", "verify-shards", "catalog-read-cache", "search-rate"}


class SearchTrace:
    """Files, functions and record types that a traced request uses; functions without lambdas and comprehensions."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[str] = set()
        self.records: set[str] = set()
        self._is_active = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record calls during the ``with`` block."""
        self._is_active = True
        yield
        self._is_active = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call; see :func:`sys.setprofile`."""
        if not self._is_active or event != "call" or threading.current_thread().name in _BACKGROUND:
            return
        code = frame.f_code
        if _is_own(code.co_filename):
            file = str(Path(code.co_filename).relative_to(_ROOT))
            self.files.add(file)
            if not code.co_name.startswith("<"):
                self.functions.add(f"{file}:{code.co_qualname}")
        elif code.co_filename == "<string>" and code.co_argcount:  # generated constructors
            owner = frame.f_locals.get(code.co_varnames[0])
            kind = owner if isinstance(owner, type) else type(owner)
            module = sys.modules.get(kind.__module__)
            is_record = is_dataclass(kind) or hasattr(kind, "_fields")
            if is_record and _is_own(str(getattr(module, "__file__", ""))):
                self.records.add(f"{kind.__module__}.{kind.__qualname__}")


def _is_own(file: str) -> bool:
    """Check whether a file belongs to the project, except for this one."""
    return file.startswith(str(_ROOT)) and _LIBRARIES not in file and file != __file__


async def trace_search(query: str) -> SearchTrace:
    """Trace a search of the library that the settings name."""
    trace = SearchTrace()
    threading.setprofile(trace)
    from api.app import create_app

    app = create_app()
    async with app.router.lifespan_context(app):
        app.state.query_service.snapshots.refresh()
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            parameters = {"q": query}
            (await client.get("/v1/search", params=parameters)).raise_for_status()
            sys.setprofile(trace)
            with trace.active():
                response = await client.get("/v1/search", params=parameters)
            sys.setprofile(None)
            response.raise_for_status()
    return trace


def main() -> None:
    """Print the counts and the names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("query")
    options = parser.parse_args()
    os.environ |= {"CINESTRATA_DATA_DIR": str(options.data), "CINESTRATA_LOG_LEVEL": "ERROR"}
    trace = asyncio.run(trace_search(options.query))
    for name in ("files", "functions", "records"):
        print(*sorted(getattr(trace, name)), sep="\n")
        print(f"--- {len(getattr(trace, name))} {name}\n")


if __name__ == "__main__":
    main()
