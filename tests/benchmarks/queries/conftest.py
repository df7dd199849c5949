"""Fixture: the folder of two domains with several captions per video."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

SHADES = ("pale", "bright", "dim")
NAMES = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec romeo"


@pytest.fixture
def query_folder(clip_folder: Path, tmp_path: Path) -> Path:
    """Both domains with three captions per video: a name of its own, other words, and a long text."""
    folder = tmp_path / "shapes"
    shutil.copytree(clip_folder, folder)
    names = iter(NAMES.split())
    for domain in ("disks", "stripes"):
        rows = []
        for path in sorted((folder / domain).glob("*.mp4")):
            color, number = path.stem.split("-")
            shade = SHADES[int(number)]
            captions = [
                f"{next(names)} is a {shade} {color} shape",
                f"{domain} colored {color}",
                f"a long text: {shade} {domain}",
            ]
            rows.append({"uri": path.name, "captions": captions, "metadata": {"shade": [shade]}})
        (folder / domain / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
