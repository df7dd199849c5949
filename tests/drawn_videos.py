"""Folders of the demo's drawn videos: mp4 files and a manifest per domain."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import manifest_line, write_scene


def write_domains(root: Path, *, domains: Iterable[str], train: int, val: int, test: int) -> None:
    """Write ``root/<domain>/<scene ID>.mp4`` and ``root/<domain>/manifest.jsonl``, whose URIs are relative."""
    for name in domains:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        scenes = make_scenes(name, train=train, val=val, test=test)
        for scene in scenes:
            write_scene(folder, scene)
        (folder / "manifest.jsonl").write_text("".join(map(manifest_line, scenes)))
