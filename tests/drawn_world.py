"""Folders of drawn videos: one per domain of the video world, with mp4 files and a manifest for ``POST /tasks``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.data.world import make_domain, write_mp4


def write_world(
    root: Path,
    *,
    domains: Iterable[str],
    seed: int,
    train: int,
    val: int,
    test: int,
    categories: int,
    captions: int = 5,
) -> None:
    """Write ``root/<domain>/<clip id>.mp4`` and ``root/<domain>/manifest.jsonl``, whose URIs are relative."""
    for name in domains:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        clips = make_domain(
            name, seed=seed, train=train, val=val, test=test, categories=categories, captions=captions
        )
        entries = []
        for clip in clips:
            write_mp4(clip, folder / f"{clip.id}.mp4")
            entries.append(
                {
                    "uri": f"{clip.id}.mp4",
                    "captions": clip.captions,
                    "id": clip.id,
                    "split": clip.split,
                    "metadata": {"category": clip.category, "duration": 3.0},
                }
            )
        (folder / "manifest.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
