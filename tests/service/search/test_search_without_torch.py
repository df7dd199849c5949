"""A process that answers searches on ``small`` or ``lite2`` and with the default method imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from benchmarks.search.synthetic_library import make_library
from models.backbones import SMALL_NAMES
from models.backbones.backbone_loading import load_backbone
from service.core.settings import Settings

ROOT = Path(__file__).parents[3]
_SEARCH = dedent("""
    import json, sys
    import api.app
    from cinestrata_schemas.search import SearchQuery
    from service.search.engine import SearchEngine

    engine = SearchEngine()
    engine.snapshots.refresh()
    queries = [SearchQuery(q=text, k=3) for text in json.loads(sys.argv[1])]
    responses = engine.search_many(queries)
    together = [[result.video_id for result in response.results] for response in responses]
    alone = [[result.video_id for result in engine.search(query.q, 3).results] for query in queries]
    heavy = [name for name in ("torch", "transformers", "open_clip", "torchvision", "timm") if name in sys.modules]
    print(json.dumps({"together": together, "alone": alone, "heavy": heavy}))
""")


@pytest.fixture(params=SMALL_NAMES)
def texts(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Settings]
) -> list[str]:
    """Queries for a library of two domains in the process's data folder."""
    configured = settings_factory(tmp_path, backbone=request.param, log_level="ERROR")
    library = make_library(
        configured.data_dir,
        load_backbone(request.param, frames=2),
        tasks=2,
        videos=12,
        queries=12,
        first_id=1,
        seed=0,
    )
    return [query.text for query in library.queries]


def test_searches_on_packaged_backbones_import_no_torch(texts: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SEARCH, json.dumps(texts)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["heavy"] == []
    assert [len(ids) for ids in report["together"]] == [3] * len(texts)
    assert report["together"] == report["alone"]
