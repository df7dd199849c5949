"""Motion: reversed clips have the same frames in the opposite order, and different captions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data.world import DOMAINS, Clip, make_domain, render
from benchmarks.data.world.motion import MOTIONS, limit_extent, pose, reverse, start_around
from benchmarks.data.world.scene_model import Event

_event_sequences = st.lists(
    st.builds(Event, st.sampled_from(MOTIONS), st.sampled_from([-1, 1])), min_size=1, max_size=2
).map(tuple)


def _mirrored_pairs(clips: list[Clip]) -> list[tuple[Clip, Clip]]:
    """Return consecutive clips of which one is the time reversal of the other."""
    return [
        (one, two)
        for one, two in pairwise(clips)
        if one.scene.look_seed == two.scene.look_seed and one.scene.events != two.scene.events
    ]


@pytest.mark.parametrize("name", DOMAINS)
def test_pair_has_equal_frames_in_opposite_order_and_different_captions(name: str) -> None:
    clips = make_domain(name, seed=0, train=0, val=0, test=40, categories=2)
    pairs = _mirrored_pairs(clips)
    assert len(pairs) >= 10
    times = [(index + 0.5) / 12 for index in range(12)]
    for one, two in pairs[:10]:
        forwards = render(one.scene, size=48, times=times).astype(np.int16)
        backwards = render(two.scene, size=48, times=times).astype(np.int16)[::-1]
        # The sets of frames are equal except for rounded edge pixels, so only the order distinguishes the clips.
        assert np.abs(forwards - backwards).mean() < 0.05
        # In order, the frames differ, and so do the captions.
        assert np.abs(forwards - backwards[::-1]).mean() > 0.2
        assert one.scene.attributes[:-1] == two.scene.attributes[:-1]
        assert one.scene.attributes != two.scene.attributes
        assert not set(one.captions) & set(two.captions)


@given(_event_sequences, st.floats(0, 1))
def test_reversed_events_have_the_same_poses_in_opposite_order(events: tuple[Event, ...], t: float) -> None:
    start = start_around(events, (0.5, 0.5))
    motions = [event.motion for event in events]
    # Visibility is a state: only a visible object can vanish, which the sampling of scenes ensures.
    for index, motion in enumerate(motions):
        if motion in ("appear", "vanish") and (
            len(set(motions) & {"appear", "vanish"}) > 1 or index not in (0, 1)
        ):
            return
    undone, end = reverse(events, start)
    ours, theirs = pose(events, start, t), pose(undone, end, 1 - t)
    assert ours[:3] == pytest.approx(theirs[:3], abs=1e-6)
    if not {"appear", "vanish", "blink"} & set(motions):
        assert ours.alpha == theirs.alpha
    # The angle of a full spin may differ by whole turns.
    assert np.cos(np.radians(ours.angle - theirs.angle)) == pytest.approx(1, abs=1e-6)
    assert reverse(undone, end)[0] == events


@given(_event_sequences, st.floats(0.4, 0.8))
def test_limited_events_stay_within_the_given_extent(events: tuple[Event, ...], extent: float) -> None:
    events = limit_extent(events, extent)
    start = start_around(events, (0.5, 0.5))
    poses = [pose(events, start, t) for t in np.linspace(0, 1, 60)]
    for axis in (0, 1):
        places = [at[axis] for at in poses]
        assert 0.5 - extent / 2 - 1e-6 <= min(places)
        assert max(places) <= 0.5 + extent / 2 + 1e-6


@pytest.mark.parametrize("frames", [8, 12])
@pytest.mark.parametrize("second", [False, True])
def test_evenly_spaced_frames_distinguish_all_motions(frames: int, second: bool) -> None:
    """Any two motions differ at the mid-points of equal intervals, alone and as the second of two events."""
    looks: dict[str, np.ndarray] = {}
    for motion in MOTIONS:
        events = (Event("stop"), Event(motion)) if second else (Event(motion),)
        start = start_around(events, (0.5, 0.5))
        poses = np.array([pose(events, start, (i + 0.5) / frames) for i in range(frames)])
        poses[:, :2] -= poses[:, :2].mean(axis=0)  # independent of the position
        poses[:, 3] /= 360
        looks[motion] = poses
    for one in MOTIONS:
        for two in MOTIONS:
            if one < two:
                assert np.abs(looks[one] - looks[two]).max() > 0.08, (one, two)
