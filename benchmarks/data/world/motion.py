"""How clips move: a sequence of events defines a pose at every time.

Every motion is symmetric in time about its middle, and :func:`reverse` gives the events that run through the same poses
backwards. So for every clip there is another one with the same frames in the opposite order and a different
description: no method that ignores the order of frames can tell them apart.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from benchmarks.data.world.scene_model import Event

INVERSE = {
    "left": "right", "right": "left", "up": "down", "down": "up",
    "clockwise": "counterclockwise", "counterclockwise": "clockwise",
    "grow": "shrink", "shrink": "grow", "appear": "vanish", "vanish": "appear",
    "bounce": "bounce", "spin": "spin", "zigzag": "zigzag", "blink": "blink", "stop": "stop",
}  # fmt: skip
MOTIONS = tuple(INVERSE)

_REACH = 0.27  # half the length of a straight move, in frame sides
_ZOOM = math.log(2.3)  # logarithm of the growth from first to last size
_HOP = 0.3  # height of a bounce
_ORBIT = 0.17  # radius of a circle
_SWING = 0.2  # amplitude of a zigzag
_STEP = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
# Extent of a motion relative to its start, as (x low, x high, y low, y high).
_SWEEP = {
    "bounce": (0.0, 0.0, -_HOP, 0.0),
    "zigzag": (-_SWING, _SWING, 0.0, 0.0),
    "clockwise": (-_ORBIT, _ORBIT, 0.0, 2 * _ORBIT),
    "counterclockwise": (-_ORBIT, _ORBIT, 0.0, 2 * _ORBIT),
}

MotionStart = tuple[float, float, float, float]  # x, y, log scale, visibility


class Pose(NamedTuple):
    """An object's pose: center in frame sides, factor on its size, angle in degrees, opacity 0..1."""

    x: float
    y: float
    scale: float
    angle: float
    alpha: float


def _ease(u: float) -> float:
    """Start and stop smoothly, with ease(1 - u) = 1 - ease(u)."""
    return u * u * (3 - 2 * u)


def _appearance(u: float) -> float:
    """Compute an appearing object's opacity: 0, a short fade, then 1; symmetric in time."""
    return _ease(min(max((u - 0.38) / 0.24, 0.0), 1.0))


def _between(u: float, marks: tuple[float, ...]) -> tuple[int, float]:
    """Find the interval between ``marks`` that contains ``u``, and the relative position in it."""
    index = max(i for i, mark in enumerate(marks[:-1]) if u >= mark)
    return index, min((u - marks[index]) / (marks[index + 1] - marks[index]), 1.0)


def _hop(u: float) -> float:
    """Compute the height of three hops, the second one shorter.

    Equally spaced frames therefore cannot all show the same height.
    """
    return math.sin(math.pi * _between(u, (0.0, 0.36, 0.64, 1.0))[1])


def _swing(u: float) -> float:
    """Compute four swings of unequal length, for the same reason; swing(1 - u) = -swing(u)."""
    index, share = _between(u, (0.0, 0.31, 0.5, 0.69, 1.0))
    return (1 - abs(2 * share - 1)) * (-1) ** index


def _blink_visibility(u: float) -> float:
    """Compute a blinking object's visibility: 0 in three short intervals, otherwise 1."""
    return 0.0 if 0.07 < u < 0.19 or 0.4 < u < 0.6 or 0.81 < u < 0.93 else 1.0


def _advance(event: Event, u: float, at: MotionStart) -> tuple[MotionStart, float, float, float, float]:
    """Advance to the share ``u`` of an event; also return temporary offsets: dx, dy, angle, and a factor on opacity."""
    x, y, scale, visible = at
    motion = event.motion
    if motion in _STEP:
        dx, dy = _STEP[motion]
        distance = 2 * _REACH * event.reach * _ease(u)
        return (x + dx * distance, y + dy * distance, scale, visible), 0.0, 0.0, 0.0, 1.0
    if motion in ("grow", "shrink"):
        change = _ZOOM * _ease(u) * (1 if motion == "grow" else -1)
        return (x, y, scale + change, visible), 0.0, 0.0, 0.0, 1.0
    if motion == "appear":
        return (x, y, scale, _appearance(u)), 0.0, 0.0, 0.0, 1.0
    if motion == "vanish":
        return (x, y, scale, 1 - _appearance(u)), 0.0, 0.0, 0.0, 1.0
    if motion in ("clockwise", "counterclockwise"):
        angle = 2 * math.pi * u * (1 if motion == "clockwise" else -1)
        radius = _ORBIT * event.reach
        return at, radius * math.sin(angle), radius * (1 - math.cos(angle)), 0.0, 1.0
    if motion == "bounce":
        return at, 0.0, -_HOP * event.reach * _hop(u), 0.0, 1.0
    if motion == "zigzag":
        return at, event.sign * event.reach * _SWING * _swing(u), 0.0, 0.0, 1.0
    if motion == "spin":
        return at, 0.0, 0.0, event.sign * 360.0 * _ease(u), 1.0
    if motion == "blink":
        return at, 0.0, 0.0, 0.0, _blink_visibility(u)
    return at, 0.0, 0.0, 0.0, 1.0


def pose(events: tuple[Event, ...], start: MotionStart, t: float) -> Pose:
    """Compute the pose at time ``t`` in [0, 1]; events share the time equally."""
    at, dx, dy, angle, shown = start, 0.0, 0.0, 0.0, 1.0
    place = t * len(events)
    for index, event in enumerate(events):
        if place < index:
            break
        at, dx, dy, angle, shown = _advance(event, min(place - index, 1.0), at)
    return Pose(at[0] + dx, at[1] + dy, math.exp(at[2]), angle, at[3] * shown)


def start_around(events: tuple[Event, ...], center: tuple[float, float]) -> MotionStart:
    """Choose the start state from which the events cover an area around ``center``, at medium size."""
    hidden = next((event.motion for event in events if event.motion in ("appear", "vanish")), "") == "appear"
    xs, ys, scales = _visited_positions(events)
    return (
        center[0] - (min(xs) + max(xs)) / 2,
        center[1] - (min(ys) + max(ys)) / 2,
        -(min(scales) + max(scales)) / 2,
        0.0 if hidden else 1.0,
    )


def limit_extent(events: tuple[Event, ...], room: float) -> tuple[Event, ...]:
    """Shorten the paths of events that extend over more than ``room`` frame sides."""
    xs, ys, _ = _visited_positions(events)
    distance = max(max(xs) - min(xs), max(ys) - min(ys))
    return events if distance <= room else tuple(replace(event, reach=room / distance) for event in events)


def _visited_positions(events: tuple[Event, ...]) -> tuple[list[float], list[float], list[float]]:
    """List the positions and log scales that the events reach from a start at zero."""
    at: MotionStart = (0.0, 0.0, 0.0, 1.0)
    xs, ys, scales = [0.0], [0.0], [0.0]
    for event in events:
        low_x, high_x, low_y, high_y = _SWEEP.get(event.motion, (0.0, 0.0, 0.0, 0.0))
        xs += [at[0] + low_x * event.reach, at[0] + high_x * event.reach]
        ys += [at[1] + low_y * event.reach, at[1] + high_y * event.reach]
        at = _advance(event, 1.0, at)[0]
        xs.append(at[0])
        ys.append(at[1])
        scales.append(at[2])
    return xs, ys, scales


def reverse(events: tuple[Event, ...], start: MotionStart) -> tuple[tuple[Event, ...], MotionStart]:
    """Find the events and the start state that run through the same poses in the opposite order."""
    at = start
    for event in events:
        at = _advance(event, 1.0, at)[0]
    return tuple(
        replace(event, motion=INVERSE[event.motion], sign=-event.sign) for event in reversed(events)
    ), at
