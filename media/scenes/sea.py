"""Sea creatures and a submarine, their places and companions."""

from __future__ import annotations

import math

import numpy as np

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, lighten, mix, place, polish
from media.scenes.scene_model import FRAME_HEIGHT, FRAME_WIDTH, Backdrop, Companion, Subject

_W, _H = FRAME_WIDTH, FRAME_HEIGHT


def _water(canvas: Canvas, rng: np.random.Generator, top: Color, bottom: Color, rays: float = 0.22) -> None:
    canvas.box(0, 0, _W, _H, Gradient(top, bottom))
    for x in rng.uniform(-20, _W, 5):
        width = rng.uniform(10, 26)
        ray = [(x, 0), (x + width, 0), (x + width - 40, _H), (x - 80, _H)]
        canvas.polygon(ray, (255, 255, 255), rays * rng.uniform(0.3, 0.8))


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
    canvas.blob("-40,260 -30,120 30,104 64,150 90,260", Gradient((110, 96, 150), (60, 50, 96)))
    canvas.blob("200,260 222,150 262,112 330,130 330,260", Gradient((110, 96, 150), (60, 50, 96)))
    _floor(canvas, rng, (232, 212, 160), 182)
    colors = ((250, 110, 90), (250, 160, 60), (190, 90, 210), (250, 120, 170), (250, 220, 90))
    for n, x in enumerate((8, 40, 66, 96, 190, 222, 250, 280)):
        dx, dy, size = rng.uniform((-6, -8, 36), (6, 12, 62))
        _coral(canvas, rng, x + dx, 190 + dy, size, colors[(n + int(rng.integers(5))) % 5])
    for x in rng.uniform(0, _W, 3):
        canvas.ellipse(float(x), 196, 18, 13, ball((238, 120, 110)))


def _wreck(canvas: Canvas, rng: np.random.Generator) -> None:
    _water(canvas, rng, (60, 146, 160), (18, 58, 84), 0.16)
    shift = rng.uniform(-14, 14)
    wood, dark = (116, 84, 60), (74, 52, 42)
    canvas.line([(150 + shift, 150), (136 + shift, 14)], dark, 5)
    canvas.line([(104 + shift, 48), (176 + shift, 40)], dark, 3.4)
    sail = place("108,50 172,43 176,96 152,84 128,104 118,88", shift)
    canvas.polygon(sail, Gradient((196, 186, 160), (140, 132, 116)))
    canvas.line([(214 + shift, 150), (210 + shift, 54)], dark, 4.4)
    hull = place("16,110 60,132 160,138 240,122 286,84 276,150 240,204 70,206 36,170", shift)
    canvas.blob(hull, Gradient(wood, (64, 46, 40)))
    for plank in range(4):
        canvas.curve(place("42,-12 140,4 254,-16", shift, 142 + 14 * plank), dark, 1.6)
    for x in (84, 124, 164, 204):
        canvas.ellipse(x + shift, 158, 8, 8, (38, 30, 32))
    canvas.blob(place("176,178 196,170 214,182 206,200 182,200", shift), (28, 26, 34))
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
                    leaf = place("0,0 8,-11 15,-15 9,-3", sx, sy, side)
                    canvas.blob(leaf, Gradient(lighten(shade, 0.15), shade) if n % 2 else shade)
    _floor(canvas, rng, (112, 128, 84), 196)


def _deep(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((10, 22, 62), (2, 4, 16)))
    for x, y in rng.random((7, 2)):
        canvas.glow(float(x) * _W, float(y) * _H, 26, (40, 220, 200), 0.35)
    canvas.blob(
        "-40,300 -20,160 40,176 100,190 180,178 250,164 340,180 340,300", Gradient((26, 30, 60), (8, 8, 20))
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
        berg = place("0,-0.1 1,-0.1 0.82,0.5 0.55,1 0.3,0.7 0.08,0.45", x, 0, width, depth)
        canvas.polygon(berg, Gradient((255, 255, 255), (176, 220, 240)))
        side = place("0.5,-0.1 1,-0.1 0.82,0.5 0.55,1", x, 0, width, depth)
        canvas.polygon(side, (150, 204, 232), 0.6)
        x += 0.86 * width
    canvas.polygon(
        "-10,214 20,176 60,190 110,182 150,196 210,178 250,192 300,172 300,214",
        Gradient((236, 248, 255), (150, 200, 226)),
    )
    canvas.polygon("60,190 110,182 100,214 70,214", (170, 212, 234), 0.7)
    canvas.polygon("210,178 250,192 240,214 214,214", (170, 212, 234), 0.7)


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
    canvas.polygon("6,28 59,8 112,28", polish(stone))
    _floor(canvas, rng, (178, 178, 160), 190)


def _fish(canvas: Canvas, phase: float) -> None:
    for n, (x, y) in enumerate(((20, 18), (52, 8), (50, 32), (84, 22), (86, 48), (24, 46), (58, 58))):
        wag = 3 * math.sin(2 * math.pi * (phase + n / 7))
        color = (255, 150, 30)
        canvas.polygon([(x - 6, y), (x - 17, y - 7 + wag), (x - 17, y + 7 + wag)], polish(color))
        canvas.blob(place("-9,0 -2,-8 8,-6 13,0 8,6 -2,8", x, y), ball(color))
        canvas.box(x - 1, y - 7, x + 2, y + 7, (255, 255, 255), 1)
        canvas.ellipse(x + 8, y - 2, 1.6, 1.6, (20, 20, 30))


def _chest(canvas: Canvas, phase: float) -> None:
    wood, gold = (142, 88, 46), (252, 200, 50)
    canvas.shadow(42, 70, 42, 6)
    canvas.glow(42, 34, 34, (255, 226, 110), 0.9)
    canvas.polygon("8,32 4,6 80,6 76,32", Gradient(darken(wood, 0.2), darken(wood, 0.5)))
    canvas.line("4,6 80,6", gold, 4)
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
    canvas.line("6,52 78,52", darken(wood, 0.4), 1.4)
    star = "0,-6 1,-1 6,0 1,1 0,6 -1,1 -6,0 -1,-1"
    canvas.polygon(place(star, 60 + 8 * math.sin(2 * math.pi * phase), 16), (255, 255, 240))


def _diver(canvas: Canvas, phase: float) -> None:
    kick = 7 * math.sin(2 * math.pi * phase)
    suit = (34, 36, 48)
    canvas.box(18, 30, 34, 74, polish((250, 190, 30)), 7)
    canvas.line([(44, 78), (42 + 0.5 * kick, 100), (40 + kick, 118)], suit, 9)
    canvas.line([(56, 78), (60 - 0.5 * kick, 100), (62 - kick, 118)], suit, 9)
    canvas.blob(place("34,116 46,116 46,138 28,138", kick), polish((250, 190, 30)))
    canvas.blob(place("56,116 68,116 74,138 56,138", -kick), polish((250, 190, 30)))
    canvas.blob("34,78 32,44 40,34 58,34 66,46 64,78", polish(lighten(suit, 0.12)))
    canvas.curve([(60, 44), (76, 52 + 0.5 * kick), (80, 34 + kick)], suit, 8)
    canvas.ellipse(81, 30 + kick, 5, 5, (236, 188, 150))
    canvas.curve("38,46 30,60 38,74", suit, 8)
    canvas.ellipse(50, 20, 15, 16, suit)
    canvas.ellipse(53, 21, 11, 12, (236, 188, 150))
    canvas.box(42, 13, 67, 25, Gradient((210, 240, 255), (90, 170, 210)), 5)
    canvas.line("42,19 36,18", (20, 20, 26), 3)
    canvas.ellipse(56, 31, 5, 3.6, (60, 62, 70))
    canvas.curve("52,32 36,40 27,36", (60, 62, 70), 3)


def _anchor(canvas: Canvas, phase: float) -> None:
    iron = (98, 104, 118)
    canvas.shadow(42, 104, 38, 6)
    canvas.curve("44,8 56,-6 50,-20", (180, 160, 120), 4)
    for shade, width in ((darken(iron, 0.35), 10), (lighten(iron, 0.15), 6)):
        canvas.line("42,22 42,98", shade, width)
        canvas.line("24,36 60,36", shade, width * 0.8)
        canvas.curve("10,66 16,88 42,100 68,88 74,66", shade, width)
    for x in (10, 74):
        canvas.polygon([(x - 11, 74), (x, 54), (x + 11, 74)], polish(iron))
    canvas.ellipse(42, 13, 11, 11, polish(iron))
    canvas.ellipse(42, 13, 6, 6, (40, 58, 82))


SEA_PLACES = {
    "reef": Backdrop(_reef, "bubbles"),
    "wreck": Backdrop(_wreck, "bubbles"),
    "kelp": Backdrop(_kelp, "bubbles"),
    "deep": Backdrop(_deep, "sparks"),
    "ice": Backdrop(_ice, "bubbles"),
    "ruins": Backdrop(_ruins, "bubbles"),
}

SEA_COMPANIONS = {
    "fish": Companion((104, 70), _fish, 88, 74, drift=40, subject_x=158),
    "chest": Companion((84, 76), _chest, 82, 200, subject_x=158),
    "diver": Companion((88, 142), _diver, 76, 172, drift=10, subject_x=166),
    "anchor": Companion((84, 110), _anchor, 76, 200, subject_x=164),
}


_INK = (26, 24, 34)


def _eye(canvas: Canvas, x: float, y: float, radius: float) -> None:
    canvas.ellipse(x, y, radius, radius, (255, 255, 255))
    canvas.ellipse(x + 0.25 * radius, y + 0.1 * radius, 0.6 * radius, 0.6 * radius, _INK)
    canvas.ellipse(x + 0.4 * radius, y - 0.2 * radius, 0.2 * radius, 0.2 * radius, (255, 255, 255))


def _wave(phase: float, size: float) -> float:
    return size * math.sin(2 * math.pi * phase)


def _whale(canvas: Canvas, color: Color, phase: float) -> None:
    flap = _wave(phase, 8)
    fluke = place("4,26 20,24 30,34 38,22 50,24", 0, flap)
    canvas.blob([(42, 58), (22, 50 + 0.4 * flap), *fluke, (44, 46)], polish(color))
    canvas.blob("30,56 64,30 104,20 146,26 164,48 162,68 140,86 94,88 52,74", polish(color))
    canvas.blob("74,80 112,70 162,62 158,74 138,86 96,88", lighten(color, 0.72))
    for groove in range(5):
        line = place("98,86 110,78 122,72", 10 * groove, -groove)
        canvas.curve(line, darken(lighten(color, 0.6), 0.25), 1)
    canvas.blob(
        [(98, 74), (110, 78), (104, 96 + 0.5 * flap), (84, 102 + 0.7 * flap), (88, 88)], darken(color, 0.15)
    )
    _eye(canvas, 138, 52, 4.5)
    canvas.curve("128,66 146,64 162,58", darken(color, 0.5), 1.6)


def _turtle(canvas: Canvas, color: Color, phase: float) -> None:
    flap = _wave(phase, 12)
    skin = lighten(color, 0.35)
    canvas.blob(
        [(34, 64), (18, 66), (6, 80 - 0.4 * flap), (24, 80 - 0.4 * flap), (44, 72)], polish(darken(skin, 0.2))
    )
    canvas.blob(
        [(84, 66), (92, 80 + 0.5 * flap), (76, 104 + flap), (68, 88 + 0.5 * flap), (70, 68)], polish(skin)
    )
    canvas.blob("100,54 120,36 138,36 146,48 138,58 118,64 104,66", polish(skin))
    _eye(canvas, 132, 45, 4)
    canvas.curve("134,55 140,54 145,51", darken(skin, 0.6), 1.2)
    canvas.blob("20,66 30,36 64,18 98,34 112,64 66,76", ball(color))
    for x, y, r in (
        (66, 36, 12),
        (42, 46, 10),
        (90, 46, 10),
        (54, 60, 9),
        (80, 60, 9),
        (33, 61, 6),
        (100, 61, 6),
    ):
        hexagon = place("1,0 0.5,0.74 -0.5,0.74 -1,0 -0.5,-0.74 0.5,-0.74", x, y, r, r)
        canvas.polygon(hexagon, darken(color, 0.28))
    canvas.curve("20,66 66,77 112,64", lighten(color, 0.55), 4)


def _octopus(canvas: Canvas, color: Color, phase: float) -> None:
    for arm in range(6):
        swing = _wave(phase + arm / 6, 7)
        x, side = 26 + 13.5 * arm, (arm - 2.5) * 7
        tip = (x + side * 2.1 + swing, 108 - 4 * abs(arm - 2.5))
        hook = (tip[0] + math.copysign(7, side), tip[1] - 8)
        points = [(x, 60), (x + side * 0.7 - swing, 82), (x + side * 1.6, 100), tip, hook]
        canvas.curve(points, darken(color, 0.12), 9)
        canvas.curve(points, color, 6)
        for cup in range(1, 4):
            px, py = points[cup]
            canvas.ellipse(px, py + 1, 1.7, 1.7, lighten(color, 0.6))
    canvas.blob("18,64 14,34 30,10 60,3 90,10 106,34 102,64 60,74", ball(color))
    for x, y, r in ((36, 24, 5), (80, 20, 4), (92, 40, 5), (30, 42, 3)):
        canvas.ellipse(x, y, r, 0.8 * r, darken(color, 0.18))
    _eye(canvas, 46, 46, 9)
    _eye(canvas, 76, 46, 9)
    canvas.curve("50,62 61,66 72,62", darken(color, 0.6), 2)


def _jellyfish(canvas: Canvas, color: Color, phase: float) -> None:
    pulse = _wave(phase, 4)
    canvas.glow(48, 44, 48, lighten(color, 0.4), 0.6)
    for strand in range(7):
        x = 18 + 10 * strand
        swing = _wave(phase + strand / 7, 6)
        points = [(x, 46), (x + swing, 70), (x - swing, 94), (x + 0.6 * swing, 116)]
        canvas.curve(points, lighten(color, 0.15), 2.4, 0.9)
    for strand in range(3):
        x = 34 + 14 * strand
        canvas.curve(place("0,46 -6,60 6,72 -4,86 3,98", x), lighten(color, 0.5), 5.5, 0.9)
    bell = place("-42,48 -36,22 -18,6 18,6 36,22 42,48 24,43 12,51 0,45 -12,51 -24,43", 48, 0, 1 - pulse / 42)
    canvas.blob(bell, ball(color))
    for x in (26, 48, 70):
        canvas.curve([(48, 12), (48 + 0.7 * (x - 48), 24), (x, 38)], lighten(color, 0.55), 2)
    canvas.ellipse(34, 16, 9, 4.5, (255, 255, 255), 0.55)


def _crab(canvas: Canvas, color: Color, phase: float) -> None:
    for side in (-1, 1):
        for leg in range(3):
            lift = _wave(phase + leg / 3, 3)
            x = 70 + side * (26 + 8 * leg)
            knee, foot = place("16,58 18,82", x, lift + 4 * leg, side)
            canvas.line([(70 + side * 24, 62 + 5 * leg), knee, foot], darken(color, 0.18), 5)
        lift = _wave(phase + (side + 1) / 4, 4)
        canvas.line(place("32,54 52,46 50,30", 70, lift, side), darken(color, 0.1), 8)
        cx, cy = 70 + side * 50, 20 + lift
        canvas.blob(place("-13,10 -17,-6 -6,-19 -1,-2 6,-19 17,-6 13,10", cx, cy), ball(color))
        canvas.line([(70 + side * 12, 46), (70 + side * 14, 32)], darken(color, 0.1), 4)
    canvas.blob("30,62 38,46 70,40 102,46 110,62 98,78 70,83 42,78", ball(color))
    for x, y in ((50, 54), (90, 54), (70, 50), (60, 60), (82, 61)):
        canvas.ellipse(x, y, 2.6, 2, lighten(color, 0.55))
    _eye(canvas, 56, 29, 7)
    _eye(canvas, 84, 29, 7)
    canvas.curve("56,68 70,74 84,68", darken(color, 0.6), 2.4)


def _submarine(canvas: Canvas, color: Color, phase: float) -> None:
    width = 12 * abs(math.cos(2 * math.pi * phase))
    canvas.line("88,22 88,4 98,4", (120, 124, 132), 4)
    canvas.box(64, 20, 108, 44, polish(color), 7)
    canvas.polygon("26,48 8,30 8,84 26,68", polish(darken(color, 0.15)))
    canvas.ellipse(7, 57, 3, 4 + width, (176, 180, 190))
    canvas.blob("16,58 32,40 84,34 136,40 156,58 136,78 84,83 32,76", polish(color))
    canvas.curve("24,66 84,74 148,66", darken(color, 0.25), 2)
    for x in (58, 88, 118):
        canvas.ellipse(x, 56, 12, 12, (120, 124, 134))
        canvas.ellipse(x, 56, 9, 9, Gradient((220, 246, 255), (70, 140, 180), "ball"))
    canvas.ellipse(150, 58, 5, 6, (255, 246, 190))
    canvas.polygon("40,42 60,40 46,24 38,26", polish(darken(color, 0.1)))


SEA_CREATURES = {
    "whale": Subject((172, 112), _whale, "swims", "big whale"),
    "turtle": Subject((150, 112), _turtle, "swims", "sea turtle"),
    "octopus": Subject((120, 116), _octopus, "swims", "octopus with many arms"),
    "jellyfish": Subject((96, 120), _jellyfish, "floats", "jellyfish with long tentacles"),
    "crab": Subject((140, 96), _crab, "walks", "crab with claws", 42),
    "submarine": Subject((162, 90), _submarine, "dives", "submarine with round windows"),
}
