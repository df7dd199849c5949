"""Clips of a domain: counts, splits, determinism, and pairs that differ in the order of frames only."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.data.world import (
    DOMAINS,
    PRETRAIN_DOMAINS,
    make_domain,
    render,
    sample_pretraining_clip,
)

_DIGEST = """
import hashlib, numpy as np
from benchmarks.data.world import make_domain, render, sample_pretraining_clip
digest = hashlib.sha256()
clips = make_domain("snowfield", seed=5, train=2, val=1, test=2)
clips += [sample_pretraining_clip(np.random.default_rng(seed)) for seed in range(8)]
for clip in clips:
    digest.update(repr((clip.id, clip.captions, clip.seed)).encode())
    digest.update(render(clip.scene, size=32, times=[0.1, 0.6]).tobytes())
print(digest.hexdigest())
"""


def _digest_in_new_process(hash_seed: str) -> str:
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", _DIGEST], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_equal_seeds_give_equal_clips_and_pixels_in_every_process() -> None:
    first, second = _digest_in_new_process("1"), _digest_in_new_process("2")
    assert len(first) == len(hashlib.sha256().hexdigest())
    assert first == second


def test_different_seeds_give_different_clips() -> None:
    one = {clip.scene.attributes for clip in make_domain("radar", seed=0, train=0, val=0, test=10)}
    two = {clip.scene.attributes for clip in make_domain("radar", seed=1, train=0, val=0, test=10)}
    assert one != two


def test_domains_of_benchmarks_and_pretraining_are_disjoint() -> None:
    assert len(PRETRAIN_DOMAINS) >= 6
    assert not set(DOMAINS) & set(PRETRAIN_DOMAINS)
    assert all(len(domain.entities) >= 4 for domain in DOMAINS.values())


@pytest.mark.parametrize("name", DOMAINS)
def test_domain_has_configured_counts_and_distinct_scenes(name: str) -> None:
    clips = make_domain(name, seed=0)
    counts = Counter((clip.category, clip.split) for clip in clips)
    categories = {clip.category for clip in clips}
    assert categories == {entity.name for entity in DOMAINS[name].entities}
    for category in categories:
        assert [counts[category, split] for split in ("train", "val", "test")] == [16, 4, 40]
    assert len({clip.id for clip in clips}) == len(clips)
    # No caption describes two clips, also not of different splits.
    assert len({clip.scene.attributes for clip in clips}) == len(clips)
    assert all(len(set(clip.captions)) == 5 for clip in clips)


def test_test_split_is_independent_of_the_sizes_of_other_splits() -> None:
    small = [
        clip for clip in make_domain("pixel-arcade", seed=3, train=0, val=0, test=6) if clip.split == "test"
    ]
    large = [
        clip for clip in make_domain("pixel-arcade", seed=3, train=9, val=2, test=6) if clip.split == "test"
    ]
    assert small == large


@pytest.mark.parametrize("name", DOMAINS)
def test_many_test_clips_differ_from_another_clip_in_motion_only(name: str) -> None:
    clips = [clip for clip in make_domain(name, seed=0, train=0, val=0)]
    still = Counter((*clip.scene.attributes[:-1], clip.scene.look_seed) for clip in clips)
    paired = sum(count for count in still.values() if count > 1)
    assert paired / len(clips) > 0.4


@pytest.mark.parametrize("name", DOMAINS)
def test_test_captions_are_almost_unique(name: str) -> None:
    clips = make_domain(name, seed=0, train=0, val=0)
    seen = Counter(text for clip in clips for text in clip.captions)
    assert sum(count for count in seen.values() if count > 1) / sum(seen.values()) < 0.01


def test_categories_and_captions_can_be_limited() -> None:
    clips = make_domain("microscope", seed=0, train=2, val=1, test=3, categories=2, captions=3)
    assert len(clips) == 2 * 6
    assert {len(clip.captions) for clip in clips} == {3}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": "moon"}, "domain"),
        ({"name": "radar", "categories": 0}, "categories"),
        ({"name": "radar", "categories": 99}, "categories"),
        ({"name": "radar", "train": -1}, "train"),
        ({"name": "radar", "captions": 0}, "captions"),
    ],
)
def test_invalid_argument_is_named_in_the_error(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make_domain(seed=0, **arguments)  # type: ignore[arg-type]


def test_more_clips_than_distinct_scenes_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    radar = DOMAINS["radar"]
    small = replace(
        radar, entities=radar.entities[:2], props=(), hues=radar.hues[:2], settings=radar.settings[:1]
    )
    monkeypatch.setitem(DOMAINS, "radar", small)
    with pytest.raises(ValueError, match=r"test: 5000 clips of 'plane'"):
        make_domain("radar", seed=0, train=0, val=0, test=5000, categories=1)


def test_pretraining_clips_are_distinct_and_can_be_rendered() -> None:
    rng = np.random.default_rng(0)
    clips = [sample_pretraining_clip(rng) for _ in range(300)]
    assert len({clip.id for clip in clips}) == 300
    assert len({clip.category for clip in clips}) > 30
    assert len({clip.scene.style for clip in clips}) > 150
    for clip in clips:
        frames = render(clip.scene, size=24, times=[0.4, 0.6])
        assert frames.shape == (2, 24, 24, 3)
        assert frames.dtype == np.uint8
