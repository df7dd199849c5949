"""Things on a kitchen table, their places and companions."""

from __future__ import annotations

import math

import numpy as np

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, grain, lighten, place, polish
from media.scenes.scene_model import FRAME_HEIGHT, FRAME_WIDTH, Backdrop, Companion, Subject

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
    canvas.blob(place("182,64 196,44 212,54 226,40 237,64", shift), (90, 140, 96))
    canvas.line([(70 + shift, 0), (70 + shift, 26)], (50, 44, 44), 1.6)
    canvas.polygon(place("50,46 62,26 78,26 90,46", shift), polish((80, 78, 84)))
    canvas.glow(70 + shift, 52, 52, (255, 236, 180), 0.5)


def _cloth(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _TOP, Gradient((250, 240, 214), (236, 222, 190)))
    for x in range(0, _W, 24):
        canvas.box(x, 0, x + 10, 130, (242, 226, 190))
    canvas.box(0, 120, _W, _H, Gradient((250, 252, 250), (226, 234, 230)))
    shift = rng.uniform(0, 20)
    for column in range(-4, 14):
        left, right = 144 + (column * 28 - 118 + shift) * 0.75, 144 + (column * 28 - 104 + shift) * 0.75
        corners = [(left, 120), (right, 120), (1.9 * right - 130, _H), (1.9 * left - 130, _H)]
        canvas.polygon(corners, (60, 170, 190), 0.55)
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
    canvas.polygon("34,146 254,146 320,220 -32,220", Gradient((236, 170, 110), (206, 128, 76)))
    for x in range(60, 270, 42):
        canvas.polygon([(x, 146), (x + 12, 146), (1.6 * x - 67, 220), (1.6 * x - 86, 220)], (252, 232, 206))


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
        summit = place("-0.16,-0.77 0,-1 0.16,-0.77 0,-0.68", peak, 134, size, size)
        canvas.polygon(summit, (255, 255, 255))
    canvas.box((left + right) / 2 - 3, -4, (left + right) / 2 + 3, 134, (255, 255, 255))
    canvas.box(left, 46, right, 51, (255, 255, 255))
    for side in (-1, 1):
        x = (left if side < 0 else right) + side * 4
        curtain = place("-16,-20 16,-20 10,60 16,136 -14,136 -8,60", x, 0, side)
        canvas.blob(curtain, Gradient((170, 190, 150), (130, 156, 116)))
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
        canvas.blob(place("-16,0 -12,-0.5 3,-1 12,-0.5 16,0", x, 150, 1, height), (255, 130, 30), 0.9)
        canvas.blob(place("-9,0 -6,-0.3 0,-0.62 6,-0.3 9,0", x, 150, 1, height), (255, 220, 90))
    canvas.box(0, 150, _W, _H, Gradient((120, 76, 50), (66, 42, 34)))
    canvas.glow(144, 160, 120, (255, 150, 60), 0.4)


def _shelf(canvas: Canvas, rng: np.random.Generator) -> None:
    wood = (226, 204, 172)
    canvas.box(0, 0, _W, _H, darken(wood, 0.5))
    colors = ((90, 110, 140), (150, 96, 90), (116, 136, 100), (190, 160, 110), (120, 90, 130))
    for bottom in (76.0, 160.0):
        x = 4.0
        while x < _W - 6:
            width, height = rng.uniform(9, 17), rng.uniform(50, 68)
            shade = colors[int(rng.integers(len(colors)))]
            cover = Gradient(lighten(shade, 0.2), darken(shade, 0.25), "across")
            canvas.box(x, bottom - height, x + width, bottom, cover, 1)
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
    canvas.curve("100,62 94,74 66,75 42,72", dark, 9)
    canvas.polygon("8,36 8,16 24,28", dark)
    canvas.polygon("46,36 48,16 32,28", dark)
    canvas.ellipse(28, 46, 24, 20, ball(lighten(fur, 0.1)))
    for x in (19, 37):
        canvas.curve([(x - 5, 44), (x, 48), (x + 5, 44)], (40, 40, 50), 1.8)
    canvas.polygon("25,52 31,52 28,56", (240, 140, 150))
    canvas.curve("22,59 28,57 34,59", (60, 60, 70), 1.2)
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
    canvas.blob("26,58 32,60 33,74 37,60 46,61 48,84 53,60 54,54 40,51", (255, 250, 230))
    canvas.line("40,54 40,46", (50, 40, 36), 1.8)
    canvas.glow(40, 34, 42, (255, 200, 90), 0.9)
    canvas.blob([(40, 52), (30, 42), (34, 28), (40 + lean, 10), (46, 28), (50, 42)], (255, 150, 40))
    canvas.blob([(40, 51), (34, 42), (40 + 0.6 * lean, 24), (46, 42)], (255, 236, 140))


def _oranges(canvas: Canvas, phase: float) -> None:
    roll = 2 * math.sin(2 * math.pi * phase)
    canvas.shadow(54, 76, 54, 8)
    for x, y in ((27, 54), (81, 54), (54, 28)):
        canvas.ellipse(x + roll * (y > 30), y, 25, 24, ball((248, 138, 22)))
        canvas.ellipse(x + 6 + roll * (y > 30), y - 15, 3.4, 2.4, (120, 110, 40))
    canvas.blob("60,13 70,4 82,6 74,14", polish((70, 150, 60)))


def _bread(canvas: Canvas, phase: float) -> None:
    crust, crumb = (184, 116, 54), (246, 222, 176)
    canvas.shadow(60, 70, 60, 7)
    canvas.box(2, 60, 118, 70, polish((216, 178, 130)), 4)
    canvas.blob("12,60 8,36 22,20 56,14 84,22 90,44 86,61 50,62", ball(crust))
    for x in (26, 44, 62):
        canvas.curve([(x - 4, 36), (x + 2, 26), (x + 12, 20)], crumb, 4)
    for x in (86, 100):
        canvas.blob(place("-8,60 -12,38 -4,24 8,26 13,42 10,61", x), polish(crust))
        canvas.blob(place("-5,58 -8,40 -2,28 6,30 10,42 7,58", x), crumb)


KITCHEN_PLACES = {
    "table": Backdrop(_table),
    "cloth": Backdrop(_cloth),
    "garden": Backdrop(_garden),
    "window": Backdrop(_window),
    "fireplace": Backdrop(_fireplace),
    "shelf": Backdrop(_shelf),
}

KITCHEN_COMPANIONS = {
    "cat": Companion((112, 80), _cat, 82, 198, subject_x=180),
    "candle": Companion((80, 126), _candle, 76, 196, subject_x=172),
    "oranges": Companion((108, 84), _oranges, 82, 198, subject_x=180),
    "bread": Companion((120, 76), _bread, 82, 198, subject_x=182),
}


def _steam(canvas: Canvas, x: float, y: float, phase: float) -> None:
    for plume in range(3):
        rise = (phase + plume / 3) % 1
        top = y - 26 * rise
        sway = 4 * math.sin(2 * math.pi * (rise + plume / 3))
        foot = x + 9 * (plume - 1)
        points = [(foot + sway * (-1) ** bend, top - 8 * bend) for bend in range(4)]
        canvas.curve(points, (255, 255, 255), 3.6, 0.75 * (1 - rise))


def _shine(canvas: Canvas, x: float, y: float, rx: float, ry: float) -> None:
    canvas.ellipse(x, y, rx, ry, (255, 255, 255), 0.45)


def _teapot(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(76, 122, 60, 9)
    _steam(canvas, 142, 50, phase)
    canvas.curve("32,66 8,62 4,84 16,102 38,104", darken(color, 0.2), 10)
    canvas.curve("32,65 9,62 5,83 16,100 38,102", lighten(color, 0.15), 4)
    canvas.blob("106,98 124,86 130,62 146,56 142,66 136,92 112,112", polish(color))
    canvas.blob("26,88 36,60 76,48 112,60 124,88 110,116 76,123 42,116", ball(color))
    canvas.blob("46,56 56,44 76,40 96,44 106,56 76,60", polish(color))
    canvas.ellipse(76, 36, 7, 7, ball(color))
    canvas.curve("34,84 76,92 116,84", lighten(color, 0.6), 3)
    _shine(canvas, 52, 72, 8, 12)


def _mug(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(54, 120, 52, 8)
    _steam(canvas, 48, 44, phase)
    for shade, width in ((darken(color, 0.25), 12), (lighten(color, 0.1), 7)):
        canvas.curve("84,60 108,58 114,78 104,98 84,98", shade, width)
    left = [(8, 44), (8, 60), (10, 84), (13, 106), (26, 117)]
    right = [(96 - x, y) for x, y in reversed(left)]
    canvas.blob([*left, (48, 120), *right], Gradient(lighten(color, 0.35), darken(color, 0.3), "across"))
    canvas.ellipse(48, 44, 40, 11, lighten(color, 0.3))
    canvas.ellipse(48, 45, 35, 8.5, Gradient((96, 58, 34), (60, 34, 22)))
    canvas.ellipse(44, 44, 14, 3, (190, 140, 96), 0.7)
    _shine(canvas, 24, 78, 4, 24)


def _flame(canvas: Canvas, x: float, y: float, size: float, phase: float) -> None:
    lean = 0.16 * size * math.sin(2 * math.pi * phase)
    canvas.glow(x, y - 0.4 * size, 1.8 * size, (255, 210, 110), 0.7)
    for share, shade in ((1.0, (255, 160, 40)), (0.6, (255, 240, 150))):
        width, height = 0.32 * share * size, share * size
        tip = (x + share * lean, y - height)
        canvas.blob([(x, y), (x - width, y - 0.3 * height), tip, (x + width, y - 0.3 * height)], shade)


def _cake(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(68, 122, 68, 8)
    canvas.ellipse(68, 118, 66, 8, Gradient((246, 248, 252), (190, 196, 206)))
    for x0, x1, top, bottom in ((12, 124, 74, 116), (30, 106, 40, 78)):
        canvas.box(x0, top, x1, bottom, Gradient(lighten(color, 0.4), darken(color, 0.22), "across"), 6)
        canvas.ellipse((x0 + x1) / 2, top + 3, (x1 - x0) / 2, 8, lighten(color, 0.45))
        drops = [(x0 + (x1 - x0) * n / 12, top + (17 if n % 2 else 9)) for n in range(13)]
        icing = [(x0 - 1, top + 2), *drops, (x1 + 1, top + 2), ((x0 + x1) / 2, top + 8)]
        canvas.blob(icing, (255, 252, 246))
        for n in range(6):
            canvas.ellipse(x0 + 8 + (x1 - x0 - 16) * n / 5, bottom - 5, 3.4, 3.4, (255, 252, 246))
    for n in range(4):
        x = 44 + 16 * n
        canvas.box(x - 2.4, 22, x + 2.4, 44, Gradient((255, 255, 255), (150, 200, 240)), 1)
        _flame(canvas, x, 22, 13, phase + n / 4)


def _toaster(canvas: Canvas, color: Color, phase: float) -> None:
    lift = 16 * max(0.0, math.sin(2 * math.pi * phase))
    canvas.shadow(72, 116, 68, 8)
    for x in (34, 78):
        canvas.box(x, 34 - lift, x + 34, 76, Gradient((236, 190, 120), (196, 140, 78)), 8)
        canvas.box(x + 4, 38 - lift, x + 30, 76, (250, 220, 164), 5)
    canvas.box(10, 48, 134, 110, Gradient(lighten(color, 0.42), darken(color, 0.28)), 17)
    for x in (28, 72):
        canvas.box(x, 50, x + 46, 56, (50, 46, 50), 3)
    canvas.box(24, 62, 122, 66, lighten(color, 0.6), 2)
    canvas.box(130, 62, 142, 70, (60, 60, 66), 3)
    canvas.ellipse(110, 88, 9, 9, ball((200, 204, 210)))
    canvas.line("110,88 110,81", (60, 60, 66), 2)
    for x in (30, 114):
        canvas.box(x - 9, 108, x + 9, 115, (50, 48, 54), 2)
    _shine(canvas, 36, 82, 9, 12)


def _vase(canvas: Canvas, color: Color, phase: float) -> None:
    sway = 2.4 * math.sin(2 * math.pi * phase)
    canvas.shadow(50, 136, 40, 8)
    orange, violet = (250, 140, 60), (170, 90, 210)
    blooms = ((20, 34, orange), (50, 18, violet), (80, 34, orange), (35, 50, violet), (66, 50, orange))
    for x, y, _ in blooms:
        canvas.curve([(50, 90), ((50 + x) / 2, (y + 96) / 2), (x + sway, y)], (70, 140, 60), 2.6)
        canvas.blob(place("0,0 12,-9 18,1", (50 + x) / 2, (y + 92) / 2), (90, 164, 72))
    for x, y, shade in blooms:
        for petal in range(7):
            angle = 2 * math.pi * petal / 7
            canvas.ellipse(x + sway + 8.5 * math.cos(angle), y + 8.5 * math.sin(angle), 6, 6, ball(shade))
        canvas.ellipse(x + sway, y, 5, 5, (110, 64, 40))
    canvas.blob("34,76 32,86 14,104 22,130 50,138 78,130 86,104 68,86 66,76 50,79", ball(color))
    canvas.ellipse(50, 76, 17, 4.5, darken(color, 0.4))
    _shine(canvas, 32, 108, 6, 11)


def _pot(canvas: Canvas, color: Color, phase: float) -> None:
    bounce = 2.4 * max(0.0, math.sin(4 * math.pi * phase))
    canvas.shadow(78, 120, 66, 9)
    _steam(canvas, 78, 40, phase)
    for x0, x1 in ((4, 24), (132, 152)):
        canvas.box(x0, 66, x1, 78, (60, 58, 64), 6)
    canvas.box(18, 56, 138, 118, Gradient(lighten(color, 0.4), darken(color, 0.32), "across"), 16)
    canvas.box(18, 56, 138, 64, (206, 210, 218), 3)
    lid = place("16,56 30,44 78,36 126,44 140,56 78,58", 0, -bounce)
    canvas.blob(lid, polish(lighten(color, 0.1)))
    canvas.ellipse(78, 33 - bounce, 10, 6.5, ball((60, 58, 64)))
    _shine(canvas, 42, 88, 6, 18)


KITCHEN_THINGS = {
    "teapot": Subject((152, 130), _teapot, "steams", "pot of tea"),
    "coffee mug": Subject((118, 128), _mug, "waits", "cup of coffee"),
    "birthday cake": Subject((136, 130), _cake, "stands", "cake with candles"),
    "toaster": Subject((146, 122), _toaster, "pops up toast", "toaster with two slices"),
    "vase of flowers": Subject((100, 144), _vase, "stands", "flower vase"),
    "cooking pot": Subject((156, 128), _pot, "boils", "pot with a lid"),
}
