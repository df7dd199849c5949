"""Motion programmes: events in order become a pose at every time.

Every motion is symmetric in time about its middle, and :func:`reverse` turns a programme into the one that runs
through the same poses backwards. So for every clip there is another with the same frames in the opposite order
and a different description: no method that ignores the order of frames can tell the two apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from benchmarks.world.semantics import Event

__all__ = ["INVERSE", "MOTIONS", "Pose", "Start", "pose", "reverse", "start_of"]

INVERSE = {
    "left": "right", "right": "left", "up": "down", "down": "up",
    "clockwise": "counterclockwise", "counterclockwise": "clockwise",
    "grow": "shrink", "shrink": "grow", "appear": "vanish", "vanish": "appear",
    "bounce": "bounce", "spin": "spin", "zigzag": "zigzag", "blink": "blink", "stop": "stop",
}  # fmt: skip
MOTIONS = tuple(INVERSE)

_REACH = 0.27  # half the way of a straight move, in frame sides
_ZOOM = math.log(2.3)  # growth from first to last size, as a logarithm
_HOP = 0.24  # height of a bounce
_ORBIT = 0.17  # radius of a circle
_SWING = 0.2  # amplitude of a zigzag
_STEP = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
# What a motion sweeps beside its start, as (x low, x high, y low, y high).
_SWEEP = {
    "bounce": (0.0, 0.0, -_HOP, 0.0),
    "zigzag": (-_SWING, _SWING, 0.0, 0.0),
    "clockwise": (-_ORBIT, _ORBIT, 0.0, 2 * _ORBIT),
    "counterclockwise": (-_ORBIT, _ORBIT, 0.0, 2 * _ORBIT),
}

Start = tuple[float, float, float, float]  # x, y, log scale, visibility


class Pose(NamedTuple):
    """Where and how an object is: centre in frame sides, factor on its size, degrees, opacity 0..1."""

    x: float
    y: float
    scale: float
    angle: float
    alpha: float


def _ease(u: float) -> float:
    """Smooth start and stop, with ease(1 - u) = 1 - ease(u)."""
    return u * u * (3 - 2 * u)


def _arrival(u: float) -> float:
    """Opacity of something that appears: nothing, a short fade, then all of it; symmetric like the rest."""
    return _ease(min(max((u - 0.38) / 0.24, 0.0), 1.0))


def _advance(event: Event, u: float, at: Start) -> tuple[Start, float, float, float, float]:
    """State after the share ``u`` of an event, and the passing parts: dx, dy, angle, factor on opacity."""
    x, y, scale, visible = at
    motion = event.motion
    if motion in _STEP:
        dx, dy = _STEP[motion]
        way = 2 * _REACH * _ease(u)
        return (x + dx * way, y + dy * way, scale, visible), 0.0, 0.0, 0.0, 1.0
    if motion in ("grow", "shrink"):
        change = _ZOOM * _ease(u) * (1 if motion == "grow" else -1)
        return (x, y, scale + change, visible), 0.0, 0.0, 0.0, 1.0
    if motion == "appear":
        return (x, y, scale, _arrival(u)), 0.0, 0.0, 0.0, 1.0
    if motion == "vanish":
        return (x, y, scale, 1 - _arrival(u)), 0.0, 0.0, 0.0, 1.0
    turn = 2 * math.pi * u
    if motion in ("clockwise", "counterclockwise"):
        way = turn if motion == "clockwise" else -turn
        return at, _ORBIT * math.sin(way), _ORBIT * (1 - math.cos(way)), 0.0, 1.0
    if motion == "bounce":
        return at, 0.0, -_HOP * abs(math.sin(turn)), 0.0, 1.0
    if motion == "zigzag":
        return at, event.sign * _SWING * 2 / math.pi * math.asin(math.sin(2 * turn)), 0.0, 0.0, 1.0
    if motion == "spin":
        return at, 0.0, 0.0, event.sign * 360.0 * _ease(u), 1.0
    if motion == "blink":
        return at, 0.0, 0.0, 0.0, 0.0 if 0.12 < u < 0.36 or 0.64 < u < 0.88 else 1.0
    return at, 0.0, 0.0, 0.0, 1.0


def pose(events: tuple[Event, ...], start: Start, t: float) -> Pose:
    """The pose at time ``t`` in [0, 1]; events share the time equally."""
    at, dx, dy, angle, shown = start, 0.0, 0.0, 0.0, 1.0
    place = t * len(events)
    for index, event in enumerate(events):
        if place < index:
            break
        at, dx, dy, angle, shown = _advance(event, min(place - index, 1.0), at)
    return Pose(at[0] + dx, at[1] + dy, math.exp(at[2]), angle, at[3] * shown)


def start_of(events: tuple[Event, ...], centre: tuple[float, float]) -> Start:
    """The start from which a programme sweeps an area around ``centre``, with middling size."""
    hidden = next((event.motion for event in events if event.motion in ("appear", "vanish")), "") == "appear"
    at: Start = (0.0, 0.0, 0.0, 0.0 if hidden else 1.0)
    start = at
    xs, ys, scales = [0.0], [0.0], [0.0]
    for event in events:
        low_x, high_x, low_y, high_y = _SWEEP.get(event.motion, (0.0, 0.0, 0.0, 0.0))
        xs += [at[0] + low_x, at[0] + high_x]
        ys += [at[1] + low_y, at[1] + high_y]
        at = _advance(event, 1.0, at)[0]
        xs.append(at[0])
        ys.append(at[1])
        scales.append(at[2])
    return (
        centre[0] - (min(xs) + max(xs)) / 2,
        centre[1] - (min(ys) + max(ys)) / 2,
        -(min(scales) + max(scales)) / 2,
        start[3],
    )


def reverse(events: tuple[Event, ...], start: Start) -> tuple[tuple[Event, ...], Start]:
    """The programme and start that run through the same poses in the opposite order."""
    at = start
    for event in events:
        at = _advance(event, 1.0, at)[0]
    return tuple(Event(INVERSE[event.motion], -event.sign) for event in reversed(events)), at
