"""Searches on ``small`` or ``lite2`` with the default method need no torch, and the API imports it at once or never."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.search.synthetic_library import make_library
from models.backbones import SMALL_NAMES
from models.backbones.backbone_loading import load_backbone
from service.core.settings import Settings

pytestmark = pytest.mark.slow
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
        engine = SearchEngine(settings().model_copy(update={"data_dir": Path(folder), "backbone": backbone}))
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
    libraries, counts = [], {"tasks": 2, "videos": 12, "queries": 12, "seed": 0}
    for number, name in enumerate(SMALL_NAMES):
        folder, backbone = configured.data_dir / name, load_backbone(name, frames=2)
        library = make_library(folder, backbone, **counts, first_id=1 + 24 * number)
        libraries.append((str(library.settings.data_dir), name, [query.text for query in library.queries]))
    command = [sys.executable, "-c", _SEARCH, json.dumps(libraries)]
    output = subprocess.check_output(command, cwd=ROOT, text=True, timeout=300)
    report = json.loads(output.splitlines()[-1])
    assert report["heavy"] == []
    for together, alone in report["answers"]:
        assert [len(ids) for ids in together] == [3] * 12
        assert together == alone


_START = """
import gc, sys
from cli.commands.process_commands import create_application
create_application()
print("torch" in sys.modules, any(one is sys.modules.get("torch") for one in gc.get_objects()))
"""


@pytest.mark.parametrize(("backbone", "is_imported"), [("small", False), ("tiny", True)])
def test_garbage_collections_of_the_api_skip_torch(backbone: str, is_imported: bool, tmp_path: Path) -> None:
    environment = os.environ | {"CINESTRATA_BACKBONE": backbone, "CINESTRATA_DATA_DIR": str(tmp_path)}
    output = subprocess.check_output([sys.executable, "-c", _START], cwd=ROOT, env=environment, text=True)
    assert output.split() == [str(is_imported), "False"]
