"""Backdrops and companions in the kitchen-table domain."""

from __future__ import annotations

import math

import numpy as np

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, grain, lighten, polish
from media.scenes.scene_model import FRAME_HEIGHT, FRAME_WIDTH, Backdrop, Companion

_W, _H = FRAME_WIDTH, FRAME_HEIGHT
_TOP = 150.0  # rear edge of tables


def _texture(
    canvas: Canvas, rng: np.random.Generator, strength: float, coarse: tuple[int, int] = (1, 1)
) -> None:
    canvas.multiply(grain(int(rng.integers(2**31)), (_W * 2, _H * 2), strength, coarse))


def _planks(canvas: Canvas, color: Color, top: float) -> None:
    canvas.box(0, top, _W, _H, Gradient(lighten(color, 0.12), darken(color, 0.12)))
    for row in (0.28, 0.62):
        y = top + row * (_H - top)
        canvas.line([(0, y), (_W, y)], darken(color, 0.4), 1)


def _table(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _TOP, Gradient((176, 150, 122), (146, 116, 90)))
    _planks(canvas, (150, 92, 52), _TOP - 26)
    _texture(canvas, rng, 0.34, (60, 3))
    shift = rng.uniform(-20, 20)
    canvas.box(176 + shift, 14, 244 + shift, 72, polish((96, 62, 38)), 2)
    canvas.box(182 + shift, 20, 238 + shift, 66, Gradient((160, 206, 236), (228, 240, 246)))
    canvas.blob(
        [(182 + shift, 64), (196 + shift, 44), (212 + shift, 54), (226 + shift, 40), (237 + shift, 64)],
        (90, 140, 96),
    )
    canvas.line([(70 + shift, 0), (70 + shift, 26)], (50, 44, 44), 1.6)
    canvas.polygon(
        [(50 + shift, 46), (62 + shift, 26), (78 + shift, 26), (90 + shift, 46)], polish((80, 78, 84))
    )
    canvas.glow(70 + shift, 52, 52, (255, 236, 180), 0.5)


def _cloth(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _TOP, Gradient((250, 240, 214), (236, 222, 190)))
    for x in range(0, _W, 24):
        canvas.box(x, 0, x + 10, 130, (242, 226, 190))
    canvas.box(0, 120, _W, _H, Gradient((250, 252, 250), (226, 234, 230)))
    shift = rng.uniform(0, 20)
    for column in range(-4, 14):
        left, right = 144 + (column * 28 - 118 + shift) * 0.75, 144 + (column * 28 - 104 + shift) * 0.75
        canvas.polygon(
            [(left, 120), (right, 120), (144 + (right - 144) * 1.9, _H), (144 + (left - 144) * 1.9, _H)],
            (60, 170, 190),
            0.55,
        )
    for row, (y0, y1) in enumerate(((124, 131), (140, 150), (163, 177), (192, 208))):
        canvas.box(0, y0, _W, y1, (60, 170, 190), alpha=0.5 - 0.01 * row)
    _texture(canvas, rng, 0.06)


def _garden(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, 90, Gradient((110, 190, 246), (212, 238, 252)))
    for x in np.linspace(-10, _W + 10, 8) + rng.uniform(-10, 10, 8):
        canvas.ellipse(float(x), 74, rng.uniform(24, 36), rng.uniform(22, 40), ball((70, 146, 66)))
    canvas.box(0, 84, _W, _H, Gradient((140, 206, 86), (84, 160, 58)))
    for x, y in rng.uniform((0, 92), (_W, 150), (60, 2)):
        canvas.line([(float(x), float(y)), (float(x) + 2, float(y) - 7)], (70, 140, 50), 1.2)
    for x, y in rng.uniform((0, 92), (_W, 132), (16, 2)):
        canvas.ellipse(float(x), float(y), 3, 3, (255, 255, 255))
        canvas.ellipse(float(x), float(y), 1.2, 1.2, (250, 200, 60))
    canvas.polygon([(34, 146), (254, 146), (320, 220), (-32, 220)], Gradient((236, 170, 110), (206, 128, 76)))
    for n in range(5):
        canvas.polygon(
            [
                (60 + 42 * n, 146),
                (72 + 42 * n, 146),
                (144 + (72 + 42 * n - 144) * 1.6, 220),
                (144 + (60 + 42 * n - 144) * 1.6, 220),
            ],
            (252, 232, 206),
        )


def _window(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((232, 226, 236), (214, 206, 220)))
    shift = rng.uniform(-14, 14)
    left, right = 50 + shift, 238 + shift
    canvas.box(left - 8, -10, right + 8, 142, polish((255, 255, 255)), 2)
    canvas.box(left, -4, right, 134, Gradient((96, 178, 244), (220, 240, 252)))
    canvas.glow(right - 40, 26, 44, (255, 240, 160), 0.9)
    canvas.ellipse(right - 40, 26, 13, 13, (255, 236, 120))
    for peak, size in ((left + 46, 62), (left + 104, 84), (left + 150, 58)):
        base = (max(left, peak - size * 0.7), min(right, peak + size * 0.7))
        canvas.polygon(
            [(base[0], 134), (peak, 134 - size), (base[1], 134)], Gradient((130, 140, 176), (96, 120, 140))
        )
        canvas.polygon(
            [
                (peak - 0.16 * size, 134 - 0.77 * size),
                (peak, 134 - size),
                (peak + 0.16 * size, 134 - 0.77 * size),
                (peak, 134 - 0.68 * size),
            ],
            (255, 255, 255),
        )
    canvas.box((left + right) / 2 - 3, -4, (left + right) / 2 + 3, 134, (255, 255, 255))
    canvas.box(left, 46, right, 51, (255, 255, 255))
    for side in (-1, 1):
        x = (left if side < 0 else right) + side * 4
        canvas.blob(
            [
                (x - 16, -20),
                (x + 16, -20),
                (x + 10 * side, 60),
                (x + 16 * side, 136),
                (x - 14 * side, 136),
                (x - 8 * side, 60),
            ],
            Gradient((170, 190, 150), (130, 156, 116)),
        )
    canvas.box(0, 146, _W, _H, Gradient((250, 250, 252), (208, 210, 218)))
    canvas.box(0, 142, _W, 148, (255, 255, 255))


def _fireplace(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((70, 34, 34), (44, 22, 26)))
    for row in range(11):
        for column in range(-1, 8):
            x, y = 42 * column + (21 if row % 2 else 0), 15 * row - 4
            canvas.box(x + 1, y + 1, x + 40, y + 13, Gradient((136, 70, 56), (110, 52, 46)), 1)
    canvas.box(28, 2, 260, 16, polish((96, 62, 42)), 2)
    canvas.box(50, 34, 238, 152, (22, 12, 14), 10)
    canvas.glow(144, 118, 130, (255, 120, 30), 0.8)
    for x, height in zip(np.linspace(78, 210, 9), rng.uniform(40, 84, 9), strict=True):
        canvas.blob(
            [
                (x - 16, 150),
                (x - 12, 150 - 0.5 * height),
                (x + rng.uniform(-8, 8), 150 - height),
                (x + 12, 150 - 0.5 * height),
                (x + 16, 150),
            ],
            (255, 130, 30),
            0.9,
        )
        canvas.blob(
            [
                (x - 9, 150),
                (x - 6, 150 - 0.3 * height),
                (x, 150 - 0.62 * height),
                (x + 6, 150 - 0.3 * height),
                (x + 9, 150),
            ],
            (255, 220, 90),
        )
    canvas.box(0, 150, _W, _H, Gradient((120, 76, 50), (66, 42, 34)))
    canvas.glow(144, 160, 120, (255, 150, 60), 0.4)


def _shelf(canvas: Canvas, rng: np.random.Generator) -> None:
    wood = (226, 204, 172)
    canvas.box(0, 0, _W, _H, darken(wood, 0.5))
    colors = (
        (90, 110, 140),
        (150, 96, 90),
        (116, 136, 100),
        (190, 160, 110),
        (120, 90, 130),
        (170, 170, 176),
        (70, 84, 90),
    )
    for bottom in (76.0, 160.0):
        x = 4.0
        while x < _W - 6:
            width, height = rng.uniform(9, 17), rng.uniform(50, 68)
            shade = colors[int(rng.integers(len(colors)))]
            canvas.box(
                x,
                bottom - height,
                x + width,
                bottom,
                Gradient(lighten(shade, 0.2), darken(shade, 0.25), "across"),
                1,
            )
            for y in (bottom - height + 7, bottom - 12):
                canvas.box(x + 1.5, y, x + width - 1.5, y + 2.4, (236, 214, 150))
            x += width + 0.6
        canvas.box(0, bottom, _W, bottom + 8, polish(wood))
    canvas.box(0, 160, _W, _H, Gradient(lighten(wood, 0.2), darken(wood, 0.15)))


def _cat(canvas: Canvas, phase: float) -> None:
    breath = 1.6 * math.sin(2 * math.pi * phase)
    fur, dark = (132, 132, 144), (92, 92, 106)
    canvas.shadow(56, 70, 56, 7)
    canvas.blob(
        [(22, 68), (18, 44 - breath), (46, 26 - breath), (84, 28 - breath), (104, 50), (98, 70), (60, 74)],
        ball(fur),
    )
    for x in (62, 74, 86):
        canvas.curve([(x, 28 - breath), (x + 5, 40 - breath), (x + 3, 50)], dark, 4)
    canvas.curve([(100, 62), (94, 74), (66, 75), (42, 72)], dark, 9)
    canvas.polygon([(8, 36), (8, 16), (24, 28)], dark)
    canvas.polygon([(46, 36), (48, 16), (32, 28)], dark)
    canvas.ellipse(28, 46, 24, 20, ball(lighten(fur, 0.1)))
    for x in (19, 37):
        canvas.curve([(x - 5, 44), (x, 48), (x + 5, 44)], (40, 40, 50), 1.8)
    canvas.polygon([(25, 52), (31, 52), (28, 56)], (240, 140, 150))
    canvas.curve([(22, 59), (28, 57), (34, 59)], (60, 60, 70), 1.2)
    for side in (-1, 1):
        for line in range(2):
            canvas.line(
                [(28 + 8 * side, 55 + 3 * line), (28 + 27 * side, 52 + 7 * line)], (246, 246, 250), 0.9
            )


def _candle(canvas: Canvas, phase: float) -> None:
    lean = 4 * math.sin(2 * math.pi * phase)
    canvas.shadow(40, 120, 36, 6)
    canvas.ellipse(40, 116, 34, 7, polish((196, 150, 60)))
    canvas.box(27, 56, 53, 114, Gradient((255, 252, 236), (214, 196, 160), "across"), 5)
    canvas.blob(
        [(26, 58), (32, 60), (33, 74), (37, 60), (46, 61), (48, 84), (53, 60), (54, 54), (40, 51)],
        (255, 250, 230),
    )
    canvas.line([(40, 54), (40, 46)], (50, 40, 36), 1.8)
    canvas.glow(40, 34, 42, (255, 200, 90), 0.9)
    canvas.blob([(40, 52), (30, 42), (34, 28), (40 + lean, 10), (46, 28), (50, 42)], (255, 150, 40))
    canvas.blob([(40, 51), (34, 42), (40 + 0.6 * lean, 24), (46, 42)], (255, 236, 140))


def _oranges(canvas: Canvas, phase: float) -> None:
    roll = 2 * math.sin(2 * math.pi * phase)
    canvas.shadow(54, 76, 54, 8)
    for x, y in ((27, 54), (81, 54), (54, 28)):
        canvas.ellipse(x + roll * (y > 30), y, 25, 24, ball((248, 138, 22)))
        canvas.ellipse(x + 6 + roll * (y > 30), y - 15, 3.4, 2.4, (120, 110, 40))
    canvas.blob([(60, 13), (70, 4), (82, 6), (74, 14)], polish((70, 150, 60)))


def _bread(canvas: Canvas, phase: float) -> None:
    crust, crumb = (184, 116, 54), (246, 222, 176)
    canvas.shadow(60, 70, 60, 7)
    canvas.box(2, 60, 118, 70, polish((216, 178, 130)), 4)
    canvas.blob([(12, 60), (8, 36), (22, 20), (56, 14), (84, 22), (90, 44), (86, 61), (50, 62)], ball(crust))
    for x in (26, 44, 62):
        canvas.curve([(x - 4, 36), (x + 2, 26), (x + 12, 20)], crumb, 4)
    for x in (86, 100):
        canvas.blob(
            [(x - 8, 60), (x - 12, 38), (x - 4, 24), (x + 8, 26), (x + 13, 42), (x + 10, 61)], polish(crust)
        )
        canvas.blob([(x - 5, 58), (x - 8, 40), (x - 2, 28), (x + 6, 30), (x + 10, 42), (x + 7, 58)], crumb)


KITCHEN_PLACES = {
    "table": Backdrop(("on a wooden table", "on a table of dark wood", "on a brown wooden table"), _table),
    "cloth": Backdrop(
        ("on a checkered tablecloth", "on a tablecloth with checks", "on a checked cloth"), _cloth
    ),
    "garden": Backdrop(
        (
            "on a picnic blanket in the garden",
            "at a picnic on the grass",
            "outside in the garden at a picnic",
        ),
        _garden,
    ),
    "window": Backdrop(
        (
            "by a window with a view of mountains",
            "in front of a sunny window",
            "at the window with mountains outside",
        ),
        _window,
    ),
    "fireplace": Backdrop(
        ("in front of a fireplace", "near a warm fireplace", "by the fire in a brick fireplace"), _fireplace
    ),
    "shelf": Backdrop(
        ("in front of a shelf full of books", "before a bookshelf", "next to many books on a shelf"), _shelf
    ),
}

KITCHEN_COMPANIONS = {
    "cat": Companion(
        ("next to a sleeping cat", "near a gray cat that sleeps", "while a cat sleeps"),
        (112, 80),
        _cat,
        82,
        198,
        in_front=True,
        subject_x=180,
    ),
    "candle": Companion(
        ("next to a burning candle", "by the light of a candle", "near a lit candle"),
        (80, 126),
        _candle,
        76,
        196,
        in_front=True,
        subject_x=172,
    ),
    "oranges": Companion(
        ("next to three oranges", "near a pile of oranges", "beside three ripe oranges"),
        (108, 84),
        _oranges,
        82,
        198,
        in_front=True,
        subject_x=180,
    ),
    "bread": Companion(
        ("next to a loaf of bread", "near sliced bread", "beside fresh bread"),
        (120, 76),
        _bread,
        82,
        198,
        in_front=True,
        subject_x=182,
    ),
}
