"""Frames of images and of their regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.data.frame_sources import Box, ImageFrames, write_frames
from media import MediaError
from tests.image_text_files import write_jpeg


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A picture of 40 x 20 pixels: red on the left, blue on the right."""
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 0, 255), (20, 0, 40, 20))
    path = tmp_path / "halves.png"
    image.save(path)
    return path


def test_image_is_a_video_that_does_not_move(halves: Path) -> None:
    frames = ImageFrames(halves).frames(3, 8)
    assert frames.shape == (3, 8, 8, 3)
    assert (frames == frames[0]).all()
    assert frames[0, 4, 0].tolist() == [255, 0, 0]
    assert frames[0, 4, -1].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    ("box", "left", "right"),
    [
        ((0, 0, 20, 20), "red", "red"),
        ((22, 3, 10, 4), "blue", "blue"),
        ((10, 0, 20, 5), "red", "blue"),  # scaled to the square, not cropped
        ((30, -5, 100, 100), "blue", "blue"),  # limited to the image
        ((-9, 0, 3, 3), "red", "red"),  # outside, so the nearest pixels
        ((90, 90, 0, -4), "blue", "blue"),
    ],
)
def test_region_is_scaled_to_the_square(halves: Path, box: Box, left: str, right: str) -> None:
    colors = {"red": [255, 0, 0], "blue": [0, 0, 255]}
    frames = ImageFrames(halves, box).frames(1, 6)
    assert frames.shape == (1, 6, 6, 3)
    assert frames[0, 3, 0].tolist() == colors[left]
    assert frames[0, 3, -1].tolist() == colors[right]


def test_gray_images_have_three_channels(tmp_path: Path) -> None:
    Image.new("L", (9, 9), 77).save(tmp_path / "gray.jpg")
    frames = ImageFrames(tmp_path / "gray.jpg").frames(1, 4)
    assert np.array_equal(np.unique(frames), [77])


def test_key_depends_on_file_and_region(halves: Path, tmp_path: Path) -> None:
    other = write_jpeg(tmp_path / "other.jpg")
    keys = {ImageFrames(halves).key, ImageFrames(halves, (0, 0, 2, 2)).key, ImageFrames(other).key}
    assert len(keys) == 3
    assert ImageFrames(halves).key in keys


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"\xff\xd8\xff\xe0\x00\x10JFIF"])
def test_damaged_image_raises_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "17.jpg"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=r"17\.jpg is not an image that can be decoded"):
        ImageFrames(path).frames(1, 4)
    assert "17.jpg" in write_frames((ImageFrames(path), tmp_path / "17.npy"), 1, 4)
    assert not (tmp_path / "17.npy").exists()


def test_truncated_image_raises_with_its_name(tmp_path: Path) -> None:
    path = write_jpeg(tmp_path / "cut.jpg", size=(200, 200))
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(MediaError, match=r"cut\.jpg"):
        ImageFrames(path).frames(1, 4)
