"""Fixtures: a folder of two domains with real video files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

COLORS = {"red": (220, 20, 20), "green": (20, 180, 20), "blue": (20, 20, 220)}


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Domains "disks" and "stripes": clips of three colors, two of each color for training and one held out."""
    root = tmp_path_factory.mktemp("domains")
    for domain in ("disks", "stripes"):
        folder = root / domain
        folder.mkdir()
        rows = []
        for color, rgb in COLORS.items():
            for number in range(3):
                name = f"{color}-{number}.mp4"
                _write_video(folder / name, domain, rgb, number)
                split = "test" if number == 2 else "train"
                rows.append({"uri": name, "captions": [f"{color} {domain} on gray"], "split": split})
        (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def _write_video(path: Path, domain: str, rgb: tuple[int, int, int], number: int) -> None:
    y, x = np.mgrid[:96, :96]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = 96, 96, "yuv420p"
        for shift in range(4):
            offset = 4 * number + 2 * shift
            disk = (x - 40 - offset) ** 2 + (y - 48) ** 2 < 400
            stripes = (x + offset) % 24 < 12
            picture = np.full((96, 96, 3), 128, np.uint8)
            picture[disk if domain == "disks" else stripes] = rgb
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
