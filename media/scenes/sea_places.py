"""Underwater backdrops, and the companions of creatures."""

from __future__ import annotations

import math

import numpy as np

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, lighten, mix, polish, star_points
from media.scenes.scene_model import FRAME_HEIGHT, FRAME_WIDTH, Backdrop, Companion

_W, _H = FRAME_WIDTH, FRAME_HEIGHT


def _water(canvas: Canvas, rng: np.random.Generator, top: Color, bottom: Color, rays: float = 0.22) -> None:
    canvas.box(0, 0, _W, _H, Gradient(top, bottom))
    for x in rng.uniform(-20, _W, 5):
        width = rng.uniform(10, 26)
        canvas.polygon(
            [(x, 0), (x + width, 0), (x + width - 40, _H), (x - 80, _H)],
            (255, 255, 255),
            rays * rng.uniform(0.3, 0.8),
        )


def _floor(canvas: Canvas, rng: np.random.Generator, color: Color, top: float) -> None:
    heights = top + rng.uniform(-7, 7, 7)
    points = [(-50.0, 300.0)] + [(-30 + 60.0 * n, float(y)) for n, y in enumerate(heights)] + [(360.0, 300.0)]
    canvas.blob(points, Gradient(lighten(color, 0.2), darken(color, 0.5)))
    for x, y in rng.uniform((0, top + 8), (_W, _H + 8), (40, 2)):
        canvas.ellipse(float(x), float(y), 1.6, 0.9, darken(color, 0.25))


def _coral(canvas: Canvas, rng: np.random.Generator, x: float, y: float, size: float, color: Color) -> None:
    for angle in np.linspace(-0.9, 0.9, 5) + rng.uniform(-0.12, 0.12, 5):
        middle = (x + 0.5 * size * math.sin(angle), y - 0.5 * size * math.cos(angle))
        end = (x + 0.9 * size * math.sin(1.2 * angle), y - size * math.cos(angle))
        canvas.curve([(x, y), middle, end], darken(color, 0.15), 0.17 * size)
        canvas.curve([(x - 1, y), (middle[0] - 1, middle[1]), (end[0] - 1, end[1])], color, 0.1 * size)
        canvas.ellipse(end[0], end[1], 0.11 * size, 0.11 * size, lighten(color, 0.4))


def _reef(canvas: Canvas, rng: np.random.Generator) -> None:
    _water(canvas, rng, (70, 200, 232), (16, 96, 170))
    canvas.blob(
        [(-40, 260), (-30, 120), (30, 104), (64, 150), (90, 260)], Gradient((110, 96, 150), (60, 50, 96))
    )
    canvas.blob(
        [(200, 260), (222, 150), (262, 112), (330, 130), (330, 260)], Gradient((110, 96, 150), (60, 50, 96))
    )
    _floor(canvas, rng, (232, 212, 160), 182)
    colors = ((250, 110, 90), (250, 160, 60), (190, 90, 210), (250, 120, 170), (250, 220, 90))
    for n, x in enumerate((8, 40, 66, 96, 190, 222, 250, 280)):
        _coral(
            canvas,
            rng,
            x + rng.uniform(-6, 6),
            190 + rng.uniform(-8, 12),
            rng.uniform(36, 62),
            colors[(n + int(rng.integers(5))) % 5],
        )
    for x in rng.uniform(0, _W, 3):
        canvas.ellipse(float(x), 196, 18, 13, ball((238, 120, 110)))


def _wreck(canvas: Canvas, rng: np.random.Generator) -> None:
    _water(canvas, rng, (60, 146, 160), (18, 58, 84), 0.16)
    shift = rng.uniform(-14, 14)
    wood, dark = (116, 84, 60), (74, 52, 42)
    canvas.line([(150 + shift, 150), (136 + shift, 14)], dark, 5)
    canvas.line([(104 + shift, 48), (176 + shift, 40)], dark, 3.4)
    canvas.polygon(
        [
            (108 + shift, 50),
            (172 + shift, 43),
            (176 + shift, 96),
            (152 + shift, 84),
            (128 + shift, 104),
            (118 + shift, 88),
        ],
        Gradient((196, 186, 160), (140, 132, 116)),
    )
    canvas.line([(214 + shift, 150), (210 + shift, 54)], dark, 4.4)
    canvas.blob(
        [
            (16 + shift, 110),
            (60 + shift, 132),
            (160 + shift, 138),
            (240 + shift, 122),
            (286 + shift, 84),
            (276 + shift, 150),
            (240 + shift, 204),
            (70 + shift, 206),
            (36 + shift, 170),
        ],
        Gradient(wood, (64, 46, 40)),
    )
    for plank in range(4):
        y = 142 + 14 * plank
        canvas.curve(
            [(36 + shift + 4 * plank, y - 12), (140 + shift, y + 4), (262 + shift - 6 * plank, y - 16)],
            dark,
            1.6,
        )
    for x in (84, 124, 164, 204):
        canvas.ellipse(x + shift, 158, 8, 8, (38, 30, 32))
    canvas.blob(
        [(176 + shift, 178), (196 + shift, 170), (214 + shift, 182), (206 + shift, 200), (182 + shift, 200)],
        (28, 26, 34),
    )
    _floor(canvas, rng, (168, 164, 130), 192)


def _kelp(canvas: Canvas, rng: np.random.Generator) -> None:
    _water(canvas, rng, (150, 214, 150), (16, 84, 84), 0.3)
    for layer, shade in ((0, (50, 120, 84)), (1, (84, 140, 52)), (2, (120, 160, 50))):
        for x in rng.uniform(-10, _W + 10, 6):
            lean = rng.uniform(-16, 16)
            stem = [(x + lean * math.sin(n / 2.2 + layer), 214 - 33.0 * n) for n in range(8)]
            canvas.curve(stem, darken(shade, 0.2), 2 + 0.7 * layer)
            for n, (sx, sy) in enumerate(stem[:-1]):
                for side in (-1, 1):
                    tip = (sx + side * (13 + 4 * layer), sy - 15)
                    canvas.blob(
                        [(sx, sy), (sx + side * 8, sy - 11), tip, (sx + side * 9, sy - 3)],
                        Gradient(lighten(shade, 0.15), shade) if n % 2 else shade,
                    )
    _floor(canvas, rng, (112, 128, 84), 196)


def _deep(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((10, 22, 62), (2, 4, 16)))
    for x, y in rng.random((7, 2)):
        canvas.glow(float(x) * _W, float(y) * _H, 26, (40, 220, 200), 0.35)
    canvas.blob(
        [(-40, 300), (-20, 160), (40, 176), (100, 190), (180, 178), (250, 164), (340, 180), (340, 300)],
        Gradient((26, 30, 60), (8, 8, 20)),
    )
    for x in rng.uniform(10, _W - 10, 5):
        height = rng.uniform(24, 50)
        canvas.curve([(x, 200), (x + 4, 200 - height / 2), (x - 3, 200 - height)], (40, 90, 120), 3)
        canvas.glow(x - 3, 200 - height, 15, (120, 255, 220), 0.9)
        canvas.ellipse(x - 3, 200 - height, 3, 3, (190, 255, 236))


def _ice(canvas: Canvas, rng: np.random.Generator) -> None:
    _water(canvas, rng, (206, 240, 250), (60, 140, 190), 0.3)
    x = -20.0
    while x < _W:
        width, depth = rng.uniform(50, 96), rng.uniform(36, 84)
        canvas.polygon(
            [
                (x, -4),
                (x + width, -4),
                (x + 0.82 * width, 0.5 * depth),
                (x + 0.55 * width, depth),
                (x + 0.3 * width, 0.7 * depth),
                (x + 0.08 * width, 0.45 * depth),
            ],
            Gradient((255, 255, 255), (176, 220, 240)),
        )
        canvas.polygon(
            [
                (x + 0.5 * width, -4),
                (x + width, -4),
                (x + 0.82 * width, 0.5 * depth),
                (x + 0.55 * width, depth),
            ],
            (150, 204, 232),
            0.6,
        )
        x += 0.86 * width
    canvas.polygon(
        [
            (-10, 214),
            (20, 176),
            (60, 190),
            (110, 182),
            (150, 196),
            (210, 178),
            (250, 192),
            (300, 172),
            (300, 214),
        ],
        Gradient((236, 248, 255), (150, 200, 226)),
    )
    canvas.polygon([(60, 190), (110, 182), (100, 214), (70, 214)], (170, 212, 234), 0.7)
    canvas.polygon([(210, 178), (250, 192), (240, 214), (214, 214)], (170, 212, 234), 0.7)


def _ruins(canvas: Canvas, rng: np.random.Generator) -> None:
    _water(canvas, rng, (56, 120, 196), (22, 44, 110), 0.2)
    stone = (214, 206, 184)
    broken = int(rng.integers(4))
    for n, x in enumerate((26, 92, 180, 246)):
        top = 96.0 if n == broken else 46.0
        canvas.box(x - 13, top, x + 13, 190, Gradient(lighten(stone, 0.25), darken(stone, 0.4), "across"))
        for flute in range(3):
            canvas.line([(x - 6 + 6 * flute, top + 4), (x - 6 + 6 * flute, 186)], darken(stone, 0.3), 1.2)
        canvas.box(x - 18, 184, x + 18, 194, polish(stone), 1)
        if n != broken:
            canvas.box(x - 18, 40, x + 18, 50, polish(stone), 1)
    for first, last in ((26, 92), (180, 246)):
        canvas.box(first - 22, 28, last + 22, 41, polish(mix(stone, (120, 150, 180), 0.15)), 1)
    canvas.polygon([(6, 28), (59, 8), (112, 28)], polish(stone))
    _floor(canvas, rng, (178, 178, 160), 190)


def _fish(canvas: Canvas, phase: float) -> None:
    for n, (x, y) in enumerate(((20, 18), (52, 8), (50, 32), (84, 22), (86, 48), (24, 46), (58, 58))):
        wag = 3 * math.sin(2 * math.pi * (phase + n / 7))
        color = (255, 150, 30)
        canvas.polygon([(x - 6, y), (x - 17, y - 7 + wag), (x - 17, y + 7 + wag)], polish(color))
        canvas.blob(
            [(x - 9, y), (x - 2, y - 8), (x + 8, y - 6), (x + 13, y), (x + 8, y + 6), (x - 2, y + 8)],
            ball(color),
        )
        canvas.box(x - 1, y - 7, x + 2, y + 7, (255, 255, 255), 1)
        canvas.ellipse(x + 8, y - 2, 1.6, 1.6, (20, 20, 30))


def _chest(canvas: Canvas, phase: float) -> None:
    wood, gold = (142, 88, 46), (252, 200, 50)
    canvas.shadow(42, 70, 42, 6)
    canvas.glow(42, 34, 34, (255, 226, 110), 0.9)
    canvas.polygon([(8, 32), (4, 6), (80, 6), (76, 32)], Gradient(darken(wood, 0.2), darken(wood, 0.5)))
    canvas.line([(4, 6), (80, 6)], gold, 4)
    rng = np.random.default_rng(5)
    for x, y in zip(np.linspace(12, 72, 17), rng.uniform(26, 36, 17), strict=True):
        canvas.ellipse(float(x), float(y), 6, 5, ball(gold))
    canvas.ellipse(30, 24, 4, 4, ball((230, 40, 70)))
    canvas.ellipse(58, 25, 4, 4, ball((50, 200, 120)))
    canvas.box(6, 34, 78, 70, Gradient(lighten(wood, 0.15), darken(wood, 0.3)), 3)
    for x in (16, 68):
        canvas.box(x - 3, 34, x + 3, 70, gold)
    canvas.box(35, 34, 49, 50, gold, 2)
    canvas.ellipse(42, 41, 2.4, 2.4, (60, 40, 30))
    canvas.line([(6, 52), (78, 52)], darken(wood, 0.4), 1.4)
    angle = star_points(60 + 8 * math.sin(2 * math.pi * phase), 16, 6, 4, 0.25)
    canvas.polygon(angle, (255, 255, 240))


def _diver(canvas: Canvas, phase: float) -> None:
    kick = 7 * math.sin(2 * math.pi * phase)
    suit = (34, 36, 48)
    canvas.box(18, 30, 34, 74, polish((250, 190, 30)), 7)
    canvas.line([(44, 78), (42 + 0.5 * kick, 100), (40 + kick, 118)], suit, 9)
    canvas.line([(56, 78), (60 - 0.5 * kick, 100), (62 - kick, 118)], suit, 9)
    canvas.blob(
        [(34 + kick, 116), (46 + kick, 116), (46 + kick, 138), (28 + kick, 138)], polish((250, 190, 30))
    )
    canvas.blob(
        [(56 - kick, 116), (68 - kick, 116), (74 - kick, 138), (56 - kick, 138)], polish((250, 190, 30))
    )
    canvas.blob([(34, 78), (32, 44), (40, 34), (58, 34), (66, 46), (64, 78)], polish(lighten(suit, 0.12)))
    canvas.curve([(60, 44), (76, 52 + 0.5 * kick), (80, 34 + kick)], suit, 8)
    canvas.ellipse(81, 30 + kick, 5, 5, (236, 188, 150))
    canvas.curve([(38, 46), (30, 60), (38, 74)], suit, 8)
    canvas.ellipse(50, 20, 15, 16, suit)
    canvas.ellipse(53, 21, 11, 12, (236, 188, 150))
    canvas.box(42, 13, 67, 25, Gradient((210, 240, 255), (90, 170, 210)), 5)
    canvas.line([(42, 19), (36, 18)], (20, 20, 26), 3)
    canvas.ellipse(56, 31, 5, 3.6, (60, 62, 70))
    canvas.curve([(52, 32), (36, 40), (27, 36)], (60, 62, 70), 3)


def _anchor(canvas: Canvas, phase: float) -> None:
    iron = (98, 104, 118)
    canvas.shadow(42, 104, 38, 6)
    canvas.curve([(44, 8), (56, -6), (50, -20)], (180, 160, 120), 4)
    for shade, width in ((darken(iron, 0.35), 10), (lighten(iron, 0.15), 6)):
        canvas.line([(42, 22), (42, 98)], shade, width)
        canvas.line([(24, 36), (60, 36)], shade, width * 0.8)
        canvas.curve([(10, 66), (16, 88), (42, 100), (68, 88), (74, 66)], shade, width)
    for x in (10, 74):
        canvas.polygon([(x - 11, 74), (x, 54), (x + 11, 74)], polish(iron))
    canvas.ellipse(42, 13, 11, 11, polish(iron))
    canvas.ellipse(42, 13, 6, 6, (40, 58, 82))


SEA_PLACES = {
    "reef": Backdrop(
        ("over a coral reef", "among colorful corals", "above the coral reef"), _reef, "bubbles"
    ),
    "wreck": Backdrop(
        ("past a sunken ship", "near an old shipwreck", "along a sunken wooden ship"), _wreck, "bubbles"
    ),
    "kelp": Backdrop(
        ("through a forest of seaweed", "between tall seaweed", "in a seaweed forest"), _kelp, "bubbles"
    ),
    "deep": Backdrop(
        ("in the dark deep sea", "in the dark of the deep ocean", "among glowing lights in the deep sea"),
        _deep,
        "sparks",
    ),
    "ice": Backdrop(("under the ice", "below icebergs in cold water", "below floating ice"), _ice, "bubbles"),
    "ruins": Backdrop(
        (
            "past the columns of a sunken temple",
            "between the columns of a ruined temple",
            "near temple ruins",
        ),
        _ruins,
        "bubbles",
    ),
}

SEA_COMPANIONS = {
    "fish": Companion(
        ("with a school of orange fish", "next to many small orange fish", "while orange fish follow"),
        (104, 70),
        _fish,
        88,
        74,
        drift=40,
        in_front=True,
        subject_x=158,
    ),
    "chest": Companion(
        ("next to a treasure chest", "near a chest full of gold", "by an open treasure chest"),
        (84, 76),
        _chest,
        82,
        200,
        in_front=True,
        subject_x=158,
    ),
    "diver": Companion(
        ("with a diver", "next to a scuba diver", "while a diver waves"),
        (88, 142),
        _diver,
        76,
        172,
        drift=10,
        in_front=True,
        subject_x=166,
    ),
    "anchor": Companion(
        ("next to an anchor", "near a heavy anchor", "by a big iron anchor"),
        (84, 110),
        _anchor,
        76,
        200,
        in_front=True,
        subject_x=164,
    ),
}
