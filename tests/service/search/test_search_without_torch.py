"""A process that answers searches on ``small`` or ``lite2`` and with the default method imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

from benchmarks.search.synthetic_library import make_library
from models.backbones import SMALL_NAMES
from models.backbones.backbone_loading import load_backbone
from service.core.settings import Settings

ROOT = Path(__file__).parents[3]
_SEARCH = dedent("""
    import json, sys
    from pathlib import Path
    import api.app
    from cinestrata_schemas.search import SearchQuery
    from service.core.settings import settings
    from service.search.engine import SearchEngine

    report = []
    for folder, backbone, texts in json.loads(sys.argv[1]):
        changed = {"data_dir": Path(folder), "backbone": backbone}
        engine = SearchEngine(settings().model_copy(update=changed))
        engine.snapshots.refresh()
        queries = [SearchQuery(q=text, k=3) for text in texts]
        responses = engine.search_many(queries)
        together = [[result.video_id for result in response.results] for response in responses]
        alone = [[result.video_id for result in engine.search(query.q, 3).results] for query in queries]
        report.append([together, alone])
    heavy = [name for name in ("torch", "transformers", "open_clip", "torchvision", "timm") if name in sys.modules]
    print(json.dumps({"answers": report, "heavy": heavy}))
""")


def test_searches_on_packaged_backbones_import_no_torch(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    configured = settings_factory(tmp_path, log_level="ERROR")
    libraries = []
    for number, name in enumerate(SMALL_NAMES):
        library = make_library(
            configured.data_dir / name,
            load_backbone(name, frames=2),
            tasks=2,
            videos=12,
            queries=12,
            first_id=1 + 24 * number,
            seed=0,
        )
        libraries.append((str(library.settings.data_dir), name, [query.text for query in library.queries]))
    done = subprocess.run(
        [sys.executable, "-c", _SEARCH, json.dumps(libraries)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["heavy"] == []
    for together, alone in report["answers"]:
        assert [len(ids) for ids in together] == [3] * 12
        assert together == alone
