"""Sea creatures and a submarine. Each function draws on a canvas of the size in :data:`SEA_CREATURES`."""

from __future__ import annotations

import math

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, lighten, polish
from media.scenes.scene_model import Subject

_INK = (26, 24, 34)


def _eye(canvas: Canvas, x: float, y: float, radius: float) -> None:
    canvas.ellipse(x, y, radius, radius, (255, 255, 255))
    canvas.ellipse(x + 0.25 * radius, y + 0.1 * radius, 0.6 * radius, 0.6 * radius, _INK)
    canvas.ellipse(x + 0.4 * radius, y - 0.2 * radius, 0.2 * radius, 0.2 * radius, (255, 255, 255))


def _wave(phase: float, size: float) -> float:
    return size * math.sin(2 * math.pi * phase)


def _whale(canvas: Canvas, color: Color, phase: float) -> None:
    flap = _wave(phase, 8)
    canvas.blob(
        [
            (42, 58),
            (22, 50 + 0.4 * flap),
            (4, 26 + flap),
            (20, 24 + flap),
            (30, 34 + flap),
            (38, 22 + flap),
            (50, 24 + flap),
            (44, 46),
        ],
        polish(color),
    )
    canvas.blob(
        [(30, 56), (64, 30), (104, 20), (146, 26), (164, 48), (162, 68), (140, 86), (94, 88), (52, 74)],
        polish(color),
    )
    canvas.blob([(74, 80), (112, 70), (162, 62), (158, 74), (138, 86), (96, 88)], lighten(color, 0.72))
    for groove in range(5):
        canvas.curve(
            [
                (98 + 11 * groove, 86 - groove),
                (110 + 10 * groove, 79 - 2 * groove),
                (122 + 9 * groove, 72 - groove),
            ],
            darken(lighten(color, 0.6), 0.25),
            1,
        )
    canvas.blob(
        [(98, 74), (110, 78), (104, 96 + 0.5 * flap), (84, 102 + 0.7 * flap), (88, 88)], darken(color, 0.15)
    )
    _eye(canvas, 138, 52, 4.5)
    canvas.curve([(128, 66), (146, 64), (162, 58)], darken(color, 0.5), 1.6)


def _turtle(canvas: Canvas, color: Color, phase: float) -> None:
    flap = _wave(phase, 12)
    skin = lighten(color, 0.35)
    canvas.blob(
        [(34, 64), (18, 66), (6, 80 - 0.4 * flap), (24, 80 - 0.4 * flap), (44, 72)], polish(darken(skin, 0.2))
    )
    canvas.blob(
        [(84, 66), (92, 80 + 0.5 * flap), (76, 104 + flap), (68, 88 + 0.5 * flap), (70, 68)], polish(skin)
    )
    canvas.blob([(100, 54), (120, 36), (138, 36), (146, 48), (138, 58), (118, 64), (104, 66)], polish(skin))
    _eye(canvas, 132, 45, 4)
    canvas.curve([(134, 55), (140, 54), (145, 51)], darken(skin, 0.6), 1.2)
    canvas.blob([(20, 66), (30, 36), (64, 18), (98, 34), (112, 64), (66, 76)], ball(color))
    for x, y, r in (
        (66, 36, 12),
        (42, 46, 10),
        (90, 46, 10),
        (54, 60, 9),
        (80, 60, 9),
        (33, 61, 6),
        (100, 61, 6),
    ):
        canvas.polygon(
            [(x + r * math.cos(a), y + 0.85 * r * math.sin(a)) for a in (0, 1.05, 2.1, 3.14, 4.19, 5.24)],
            darken(color, 0.28),
        )
    canvas.curve([(20, 66), (66, 77), (112, 64)], lighten(color, 0.55), 4)


def _octopus(canvas: Canvas, color: Color, phase: float) -> None:
    for arm in range(6):
        swing = _wave(phase + arm / 6, 7)
        x, side = 26 + 13.5 * arm, (arm - 2.5) * 7
        tip = (x + side * 2.1 + swing, 108 - 4 * abs(arm - 2.5))
        points = [
            (x, 60),
            (x + side * 0.7 - swing, 82),
            (x + side * 1.6, 100),
            tip,
            (tip[0] + 7 * (1 if side > 0 else -1), tip[1] - 8),
        ]
        canvas.curve(points, darken(color, 0.12), 9)
        canvas.curve(points, color, 6)
        for cup in range(1, 4):
            px, py = points[cup]
            canvas.ellipse(px, py + 1, 1.7, 1.7, lighten(color, 0.6))
    canvas.blob(
        [(18, 64), (14, 34), (30, 10), (60, 3), (90, 10), (106, 34), (102, 64), (60, 74)], ball(color)
    )
    for x, y, r in ((36, 24, 5), (80, 20, 4), (92, 40, 5), (30, 42, 3)):
        canvas.ellipse(x, y, r, 0.8 * r, darken(color, 0.18))
    _eye(canvas, 46, 46, 9)
    _eye(canvas, 76, 46, 9)
    canvas.curve([(50, 62), (61, 66), (72, 62)], darken(color, 0.6), 2)


def _jellyfish(canvas: Canvas, color: Color, phase: float) -> None:
    pulse = _wave(phase, 4)
    canvas.glow(48, 44, 48, lighten(color, 0.4), 0.6)
    for strand in range(7):
        x = 18 + 10 * strand
        swing = _wave(phase + strand / 7, 6)
        canvas.curve(
            [(x, 46), (x + swing, 70), (x - swing, 94), (x + 0.6 * swing, 116)],
            lighten(color, 0.15),
            2.4,
            0.9,
        )
    for strand in range(3):
        x = 34 + 14 * strand
        canvas.curve(
            [(x, 46), (x - 6, 60), (x + 6, 72), (x - 4, 86), (x + 3, 98)], lighten(color, 0.5), 5.5, 0.9
        )
    canvas.blob(
        [
            (6 + pulse, 48),
            (12, 22),
            (30, 6),
            (66, 6),
            (84, 22),
            (90 - pulse, 48),
            (72, 43),
            (60, 51),
            (48, 45),
            (36, 51),
            (24, 43),
        ],
        ball(color),
    )
    for x in (26, 48, 70):
        canvas.curve([(48, 12), (48 + 0.7 * (x - 48), 24), (x, 38)], lighten(color, 0.55), 2)
    canvas.ellipse(34, 16, 9, 4.5, (255, 255, 255), 0.55)


def _crab(canvas: Canvas, color: Color, phase: float) -> None:
    for side in (-1, 1):
        for leg in range(3):
            lift = _wave(phase + leg / 3, 3)
            x = 70 + side * (26 + 8 * leg)
            canvas.line(
                [
                    (70 + side * 24, 62 + 5 * leg),
                    (x + side * 16, 58 + 8 * leg + lift),
                    (x + side * 18, 82 + 2 * leg + lift),
                ],
                darken(color, 0.18),
                5,
            )
        lift = _wave(phase + (side + 1) / 4, 4)
        canvas.line(
            [(70 + side * 32, 54), (70 + side * 52, 46 + lift), (70 + side * 50, 30 + lift)],
            darken(color, 0.1),
            8,
        )
        cx, cy = 70 + side * 50, 20 + lift
        canvas.blob(
            [
                (cx - 13, cy + 10),
                (cx - 17, cy - 6),
                (cx - 6, cy - 19),
                (cx - 1, cy - 2),
                (cx + 6, cy - 19),
                (cx + 17, cy - 6),
                (cx + 13, cy + 10),
            ],
            ball(color),
        )
        canvas.line([(70 + side * 12, 46), (70 + side * 14, 32)], darken(color, 0.1), 4)
    canvas.blob(
        [(30, 62), (38, 46), (70, 40), (102, 46), (110, 62), (98, 78), (70, 83), (42, 78)], ball(color)
    )
    for x, y in ((50, 54), (90, 54), (70, 50), (60, 60), (82, 61)):
        canvas.ellipse(x, y, 2.6, 2, lighten(color, 0.55))
    _eye(canvas, 56, 29, 7)
    _eye(canvas, 84, 29, 7)
    canvas.curve([(56, 68), (70, 74), (84, 68)], darken(color, 0.6), 2.4)


def _submarine(canvas: Canvas, color: Color, phase: float) -> None:
    width = 12 * abs(math.cos(2 * math.pi * phase))
    canvas.line([(88, 22), (88, 4), (98, 4)], (120, 124, 132), 4)
    canvas.box(64, 20, 108, 44, polish(color), 7)
    canvas.polygon([(26, 48), (8, 30), (8, 84), (26, 68)], polish(darken(color, 0.15)))
    canvas.ellipse(7, 57, 3, 4 + width, (176, 180, 190))
    canvas.blob(
        [(16, 58), (32, 40), (84, 34), (136, 40), (156, 58), (136, 78), (84, 83), (32, 76)], polish(color)
    )
    canvas.curve([(24, 66), (84, 74), (148, 66)], darken(color, 0.25), 2)
    for x in (58, 88, 118):
        canvas.ellipse(x, 56, 12, 12, (120, 124, 134))
        canvas.ellipse(x, 56, 9, 9, Gradient((220, 246, 255), (70, 140, 180), "ball"))
    canvas.ellipse(150, 58, 5, 6, (255, 246, 190))
    canvas.polygon([(40, 42), (60, 40), (46, 24), (38, 26)], polish(darken(color, 0.1)))


SEA_CREATURES = {
    "whale": Subject((172, 112), _whale, "swims", "big whale"),
    "turtle": Subject((150, 112), _turtle, "swims", "sea turtle"),
    "octopus": Subject((120, 116), _octopus, "swims", "octopus with many arms"),
    "jellyfish": Subject((96, 120), _jellyfish, "floats", "jellyfish with long tentacles"),
    "crab": Subject((140, 96), _crab, "walks", "crab with claws", 42),
    "submarine": Subject((162, 90), _submarine, "dives", "submarine with round windows"),
}
