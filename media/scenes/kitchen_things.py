"""Kitchen things. Each function draws on a canvas of the size in :data:`KITCHEN_THINGS`."""

from __future__ import annotations

import math

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, lighten, polish
from media.scenes.scene_model import Subject


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
    canvas.curve([(32, 66), (8, 62), (4, 84), (16, 102), (38, 104)], darken(color, 0.2), 10)
    canvas.curve([(32, 65), (9, 62), (5, 83), (16, 100), (38, 102)], lighten(color, 0.15), 4)
    canvas.blob([(106, 98), (124, 86), (130, 62), (146, 56), (142, 66), (136, 92), (112, 112)], polish(color))
    canvas.blob(
        [(26, 88), (36, 60), (76, 48), (112, 60), (124, 88), (110, 116), (76, 123), (42, 116)], ball(color)
    )
    canvas.blob([(46, 56), (56, 44), (76, 40), (96, 44), (106, 56), (76, 60)], polish(color))
    canvas.ellipse(76, 36, 7, 7, ball(color))
    canvas.curve([(34, 84), (76, 92), (116, 84)], lighten(color, 0.6), 3)
    _shine(canvas, 52, 72, 8, 12)


def _mug(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(54, 120, 52, 8)
    _steam(canvas, 48, 44, phase)
    for shade, width in ((darken(color, 0.25), 12), (lighten(color, 0.1), 7)):
        canvas.curve([(84, 60), (108, 58), (114, 78), (104, 98), (84, 98)], shade, width)
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
    canvas.blob(
        [(x, y), (x - 0.32 * size, y - 0.3 * size), (x + lean, y - size), (x + 0.32 * size, y - 0.3 * size)],
        (255, 160, 40),
    )
    canvas.blob(
        [
            (x, y),
            (x - 0.18 * size, y - 0.22 * size),
            (x + 0.5 * lean, y - 0.6 * size),
            (x + 0.18 * size, y - 0.22 * size),
        ],
        (255, 240, 150),
    )


def _cake(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(68, 122, 68, 8)
    canvas.ellipse(68, 118, 66, 8, Gradient((246, 248, 252), (190, 196, 206)))
    for x0, x1, top, bottom in ((12, 124, 74, 116), (30, 106, 40, 78)):
        canvas.box(x0, top, x1, bottom, Gradient(lighten(color, 0.4), darken(color, 0.22), "across"), 6)
        canvas.ellipse((x0 + x1) / 2, top + 3, (x1 - x0) / 2, 8, lighten(color, 0.45))
        icing = [
            (x0 - 1, top + 2),
            *((x0 + (x1 - x0) * n / 12, top + (17 if n % 2 else 9)) for n in range(13)),
            (x1 + 1, top + 2),
        ]
        canvas.blob([*icing, ((x0 + x1) / 2, top + 8)], (255, 252, 246))
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
    canvas.line([(110, 88), (110, 81)], (60, 60, 66), 2)
    for x in (30, 114):
        canvas.box(x - 9, 108, x + 9, 115, (50, 48, 54), 2)
    _shine(canvas, 36, 82, 9, 12)


def _vase(canvas: Canvas, color: Color, phase: float) -> None:
    sway = 2.4 * math.sin(2 * math.pi * phase)
    canvas.shadow(50, 136, 40, 8)
    blooms = (
        (20, 34, (250, 140, 60)),
        (50, 18, (170, 90, 210)),
        (80, 34, (250, 140, 60)),
        (35, 50, (170, 90, 210)),
        (66, 50, (250, 160, 80)),
    )
    for x, y, _ in blooms:
        canvas.curve([(50, 90), ((50 + x) / 2, (y + 96) / 2), (x + sway, y)], (70, 140, 60), 2.6)
        canvas.blob(
            [
                ((50 + x) / 2, (y + 92) / 2),
                ((50 + x) / 2 + 12, (y + 92) / 2 - 9),
                ((50 + x) / 2 + 18, (y + 92) / 2 + 1),
            ],
            (90, 164, 72),
        )
    for x, y, shade in blooms:
        for petal in range(7):
            angle = 2 * math.pi * petal / 7
            canvas.ellipse(x + sway + 8.5 * math.cos(angle), y + 8.5 * math.sin(angle), 6, 6, ball(shade))
        canvas.ellipse(x + sway, y, 5, 5, (110, 64, 40))
    canvas.blob(
        [
            (34, 76),
            (32, 86),
            (14, 104),
            (22, 130),
            (50, 138),
            (78, 130),
            (86, 104),
            (68, 86),
            (66, 76),
            (50, 79),
        ],
        ball(color),
    )
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
    canvas.blob(
        [
            (16, 56 - bounce),
            (30, 44 - bounce),
            (78, 36 - bounce),
            (126, 44 - bounce),
            (140, 56 - bounce),
            (78, 58 - bounce),
        ],
        polish(lighten(color, 0.1)),
    )
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
