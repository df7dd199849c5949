"""Rendering: distinct styles, visible objects, and independent frames."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from benchmarks.data.world import DOMAINS, make_domain, render


def test_frame_is_independent_of_other_requested_times() -> None:
    for name in DOMAINS:
        clip = make_domain(name, seed=0, train=0, val=0, test=1, categories=1)[0]
        many = render(clip.scene, size=40, times=[0.9, 0.1, 0.5])
        assert np.array_equal(many[1], render(clip.scene, size=40, times=[0.1])[0])
        assert np.array_equal(many[0], render(clip.scene, size=40, times=[0.9])[0])


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("size", [56, 192])
def test_object_is_visible_in_its_color(name: str, size: int) -> None:
    """Another hue of the main object changes a limited but visible part of the picture."""
    domain = DOMAINS[name]
    shares = []
    for clip in make_domain(name, seed=0, train=0, val=0, test=2):
        scene = replace(clip.scene, companion=None, start=(0.5, 0.5, 0.0, 1.0), events=clip.scene.events[:0])
        other = next(hue for hue in domain.hues if hue.words != scene.main.hue.words)
        changed = replace(scene, main=replace(scene.main, hue=other))
        ours = render(scene, size=size, times=[0.5])[0].astype(np.int16)
        theirs = render(changed, size=size, times=[0.5])[0].astype(np.int16)
        shares.append((np.abs(ours - theirs).max(axis=2) > 24).mean())
    assert min(shares) > 0.004  # the thinnest outline of a small object
    assert np.mean(shares) > 0.015
    assert max(shares) < 0.5


def test_mean_colors_distinguish_domains() -> None:
    """The nearest neighbor by mean and deviation of colors has the same domain for most clips."""
    looks, labels = [], []
    for name in DOMAINS:
        for clip in make_domain(name, seed=0, train=0, val=0, test=6):
            frame = render(clip.scene, size=32, times=[0.5])[0].astype(np.float32)
            looks.append(np.concatenate([frame.mean(axis=(0, 1)), frame.std(axis=(0, 1))]))
            labels.append(name)
    features, names = np.array(looks), np.array(labels)
    distances = np.linalg.norm(features[:, None] - features[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (names[distances.argmin(axis=1)] == names).mean() > 0.85


def test_entities_of_a_domain_have_distinct_drawings() -> None:
    for domain in DOMAINS.values():
        for one, two in combinations((*domain.entities, *domain.props), 2):
            assert one.drawing != two.drawing, (one.name, two.name)
