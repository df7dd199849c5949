"""Backbone and default method: settings, the library, and the defaults of a new library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from index.files.manifest_format import Manifest, SegmentEntry
from index.files.store_folder import StoreFolder
from service.storage.library_backbone import default_method, library_backbone, served_backbone

SHARDS = {"upgraded": "r0", "newest": "r1"}
SEGMENT = SegmentEntry("s", "", "", "", count=1, dim=1, first_id=1, last_id=1, bytes=1, files={})
CLIP = "open_clip:ViT-B-32/openai"


@pytest.mark.parametrize(
    ("description", "given", "backbone", "served", "method"),
    [
        (None, {}, "small", "small", "analytic"),
        (None, {"backbone": "", "method": ""}, "small", "small", "analytic"),  # unset variables
        ("{", {}, "small", "small", "analytic"),  # a damaged release is no error here
        ('{"backbone": "tiny"}', {}, "tiny", "tiny", "analytic"),
        (None, {"backbone": CLIP}, CLIP, CLIP, "analytic"),
        ('{"backbone": "tiny"}', {"backbone": CLIP, "method": "ffa_tame"}, CLIP, "tiny", "ffa_tame"),
    ],
)
def test_settings_precede_the_library_and_the_defaults(
    settings_factory: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    description: str | None,
    given: dict[str, str],
    backbone: str,
    served: str,
    method: str,
) -> None:
    monkeypatch.delenv("CINESTRATA_BACKBONE", raising=False)
    configured = settings_factory(tmp_path / "data", upgraded=False, **given)
    if description is not None:
        folder = StoreFolder(configured.index_dir).release_folder("r1")
        folder.mkdir(parents=True)
        (folder / "release.json").write_text(description)
        older, newest = (replace(SEGMENT, task=task, release=release) for task, release in SHARDS.items())
        manifest = Manifest(release="r0", shards={older.task: older, newest.task: newest})
        monkeypatch.setattr(StoreFolder, "manifest", lambda self: manifest)
    assert (library_backbone(), served_backbone(configured), default_method()) == (backbone, served, method)
