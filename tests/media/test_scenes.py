"""Videos of the demo: captions, variety, and equal files for equal scenes."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from media.scenes.painting import FRAME_HEIGHT, FRAME_WIDTH
from media.scenes.scene_domains import COLORS, SCENE_DOMAINS, Scene, make_scenes
from media.scenes.scene_files import FRAMES, manifest_line, render_scene, write_scene, write_scenes
from media.video_decoder import VideoDecoder

DOMAINS = tuple(SCENE_DOMAINS)


def _parts(scene: Scene) -> tuple[str, str, str, str]:
    return scene.subject, scene.color, scene.place, scene.companion


@pytest.mark.parametrize("domain", DOMAINS)
def test_captions_of_held_out_videos_combine_words_of_training_captions(domain: str) -> None:
    scenes = make_scenes(domain, train=45, val=5, test=30)
    learned = {word for s in scenes if s.split == "train" for c in s.captions for word in c.lower().split()}
    held_out = [scene for scene in scenes if scene.split == "test"]
    assert {word for s in held_out for c in s.captions for word in c.lower().split()} <= learned
    assert not {_parts(s) for s in held_out} & {_parts(s) for s in scenes if s.split != "test"}
    assert len({s.captions[0] for s in scenes}) == len(scenes)


@pytest.mark.parametrize("domain", DOMAINS)
def test_two_scenes_differ_in_at_least_two_parts(domain: str) -> None:
    scenes = [_parts(scene) for scene in make_scenes(domain, train=100, val=8, test=36)]
    assert all(sum(a != b for a, b in zip(*pair, strict=True)) >= 2 for pair in combinations(scenes, 2))
    with pytest.raises(ValueError, match=f"domain '{domain}' has 144 scenes"):
        make_scenes(domain, train=140, val=3, test=2)


def _scene(domain: str, subject: str, place: str, companion: str) -> Scene:
    color = list(COLORS)[len(subject) % len(COLORS)]
    return Scene(domain, "train", subject, color, place, companion, 3, ("A caption",))


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_every_part_is_drawn(domain: str) -> None:
    parts = SCENE_DOMAINS[domain]
    subjects, companions = list(parts.subjects), list(parts.companions)
    seen = []
    for number, (subject, place) in enumerate(zip(subjects, parts.places, strict=True)):
        frames = render_scene(_scene(domain, subject, place, companions[number % len(companions)]))
        assert frames.shape == (FRAMES, FRAME_HEIGHT, FRAME_WIDTH, 3)
        assert (frames[0] != frames[-1]).any(), "something moves"
        seen.append(frames[len(frames) // 2])
    differences = [np.abs(a.astype(int) - b).mean() for a, b in combinations(seen, 2)]
    assert min(differences) > 10


@pytest.mark.slow
def test_files_are_equal_in_every_process_and_kept(tmp_path: Path) -> None:
    scenes = {name: make_scenes(name, train=1, val=0, test=1) for name in DOMAINS[:2]}
    calls: list[tuple[int, int]] = []
    write_scenes(tmp_path / "one", scenes, 1, lambda done, total: calls.append((done, total)))
    write_scenes(tmp_path / "two", scenes, 2)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 4
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert calls[-1] == (4, 4)

    times = {file: (tmp_path / "one" / file).stat().st_mtime_ns for file in files}
    write_scenes(tmp_path / "one", scenes, 1)
    assert times == {file: (tmp_path / "one" / file).stat().st_mtime_ns for file in times}


def test_manifest_describes_the_videos(tmp_path: Path) -> None:
    scenes = make_scenes("street", train=1, val=0, test=1)
    entries = [json.loads(manifest_line(scene)) for scene in scenes]
    assert [entry["split"] for entry in entries] == ["train", "test"]
    assert [entry["captions"] for entry in entries] == [list(scene.captions) for scene in scenes]
    assert entries[0]["metadata"]["color"] == scenes[0].color
    assert write_scene(tmp_path, scenes[0]) == tmp_path / entries[0]["uri"]
    video = VideoDecoder().decode(tmp_path / entries[0]["uri"], frames=8, size=64)
    assert (video.width, video.height, video.duration) == (FRAME_WIDTH, FRAME_HEIGHT, 2.5)
