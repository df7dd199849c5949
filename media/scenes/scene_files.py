"""Files of drawn videos: an mp4 file and a line of a manifest for each scene."""

from __future__ import annotations

import json
from pathlib import Path

from media.mp4_encoding import encode_mp4
from media.scenes.scene_model import Scene
from media.scenes.scene_rendering import FRAMES_PER_SECOND, render_scene

__all__ = ["manifest_line", "scene_file_name", "write_scene"]


def scene_file_name(scene: Scene) -> str:
    """Name of the mp4 file of a scene."""
    return f"{scene.id}.mp4"


def manifest_line(scene: Scene) -> str:
    """Line of a manifest (JSONL) that describes a scene, with its line break."""
    entry = {
        "uri": scene_file_name(scene),
        "captions": list(scene.captions),
        "id": scene.id,
        "split": scene.split,
        "metadata": {
            "subject": scene.subject,
            "color": scene.color,
            "place": scene.backdrop,
            "with": scene.companion,
        },
    }
    return json.dumps(entry) + "\n"


def write_scene(folder: Path, scene: Scene) -> Path:
    """Draw a scene and write its mp4 file, which appears atomically; returns the file."""
    path = folder / scene_file_name(scene)
    encode_mp4(render_scene(scene), path, fps=FRAMES_PER_SECOND)
    return path
