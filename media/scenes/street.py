"""Vehicles, their places and companions."""

from __future__ import annotations

import math

import numpy as np

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, lighten, mix, place, polish
from media.scenes.scene_model import FRAME_HEIGHT, FRAME_WIDTH, Backdrop, Companion, Subject

_W, _H = FRAME_WIDTH, FRAME_HEIGHT


def _road(canvas: Canvas, color: Color, marking: Color, top: float = 152) -> None:
    canvas.box(0, top - 8, _W, top, Gradient(lighten(color, 0.35), lighten(color, 0.15)))
    canvas.box(0, top, _W, _H, Gradient(darken(color, 0.15), color))
    for dash in range(6):
        x = 8 + 52 * dash
        canvas.polygon([(x, 194), (x + 30, 194), (x + 27, 198), (x - 3, 198)], marking)


def _lamp(canvas: Canvas, x: float, light: bool) -> None:
    canvas.line([(x, 150), (x, 76), (x + 10, 70)], (50, 54, 66), 2.4)
    canvas.box(x + 6, 68, x + 20, 73, (70, 74, 86), 2)
    if light:
        canvas.glow(x + 13, 76, 34, (255, 214, 130), 0.9)


def _night(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((10, 12, 44), (52, 40, 96)))
    for x, y, size in rng.random((50, 3)):
        canvas.ellipse(x * _W, y * 90, 0.5 + 0.6 * size, 0.5 + 0.6 * size, (240, 240, 255))
    moon = rng.uniform(30, 250)
    canvas.glow(moon, 30, 46, (200, 210, 255), 0.6)
    canvas.ellipse(moon, 30, 14, 14, ball((244, 240, 214)))
    x = -8.0
    while x < _W:
        width, top = rng.uniform(26, 46), rng.uniform(34, 92)
        wall = mix((26, 28, 60), (50, 44, 86), rng.random())
        canvas.box(x, top, x + width, 150, Gradient(lighten(wall, 0.06), wall))
        for row in np.arange(top + 6, 138, 11):
            for column in np.arange(x + 5, x + width - 5, 9):
                if rng.random() < 0.55:
                    canvas.box(column, row, column + 5, row + 6, (255, 216, 120))
        x += width + rng.uniform(0, 4)
    _road(canvas, (48, 48, 70), (214, 208, 180))
    for x in (40, 150, 258):
        _lamp(canvas, x, True)
        canvas.glow(x + 10, 176, 46, (255, 200, 120), 0.35)


def _fir(canvas: Canvas, x: float, y: float, size: float) -> None:
    canvas.box(x - 0.06 * size, y - 0.2 * size, x + 0.06 * size, y, (92, 68, 52))
    for layer in range(3):
        base, half = y - (0.15 + 0.26 * layer) * size, (0.36 - 0.08 * layer) * size
        tip = base - 0.42 * size
        canvas.polygon([(x - half, base), (x + half, base), (x, tip)], Gradient((60, 118, 92), (30, 78, 66)))
        canvas.blob(place("0,-0.43 0.15,-0.16 0,-0.2 -0.15,-0.16", x, base, size, size), (250, 252, 255))


def _snow(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((176, 202, 228), (236, 242, 250)))
    canvas.blob(
        "-60,160 -10,96 60,74 140,104 220,70 310,100 330,160", Gradient((250, 252, 255), (214, 226, 242))
    )
    canvas.blob("-60,170 0,122 90,114 180,124 300,110 340,170", Gradient((255, 255, 255), (226, 234, 246)))
    for x in np.sort(rng.uniform(0, _W, 8)):
        _fir(canvas, float(x), 140 + rng.uniform(0, 8), rng.uniform(44, 74))
    canvas.box(0, 144, _W, _H, Gradient((255, 255, 255), (226, 234, 246)))
    canvas.box(0, 158, _W, 198, Gradient((186, 198, 216), (208, 218, 232)))
    for y in (164, 190):
        canvas.box(0, y, _W, y + 3, (168, 180, 202))


def _house(canvas: Canvas, x: float, width: float, top: float, wall: Color) -> None:
    canvas.box(x, top, x + width, 148, Gradient(lighten(wall, 0.15), darken(wall, 0.1)))
    roof = [(x - 3, top), (x + width / 2, top - 20), (x + width + 3, top)]
    canvas.polygon(roof, Gradient((146, 92, 80), (110, 66, 62)))
    for row in np.arange(top + 8, 126, 20):
        for column in (x + 0.16 * width, x + 0.6 * width):
            canvas.box(
                column, row, column + 0.24 * width, row + 12, Gradient((196, 212, 224), (130, 148, 168)), 1
            )
    canvas.box(x + 0.4 * width, 128, x + 0.6 * width, 148, (94, 70, 60), 1)


def _rain(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((92, 100, 114), (150, 156, 166)))
    for x, y in zip(np.arange(-10, _W + 30, 34), rng.uniform(4, 22, 10), strict=False):
        canvas.ellipse(float(x), float(y), 36, 17, Gradient((126, 132, 144), (86, 92, 106)))
    walls = ((160, 140, 120), (134, 128, 140), (166, 156, 136), (128, 140, 136), (150, 128, 128))
    left = -6.0
    while left < _W:
        width, top = rng.uniform(48, 62), rng.uniform(56, 80)
        wall = mix(walls[int(rng.integers(len(walls)))], (120, 126, 136), 0.35)
        _house(canvas, left, width, top, wall)
        left += width + 2
    _road(canvas, (92, 98, 110), (196, 200, 204))
    for _ in range(5):
        px, py = rng.uniform(10, _W - 10), rng.uniform(164, 204)
        canvas.ellipse(px, py, rng.uniform(18, 34), 4, Gradient((190, 204, 218), (140, 154, 172)))


def _palm(canvas: Canvas, x: float, y: float, height: float, lean: float) -> None:
    top = (x + lean, y - height)
    canvas.curve([(x, y), (x + 0.3 * lean, y - 0.55 * height), top], (66, 38, 40), 5)
    for angle in (-170, -140, -105, -70, -35, -5):
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        middle = (top[0] + 20 * cos, top[1] + 17 * sin - 3)
        end = (top[0] + 34 * cos, top[1] + 17 * sin + 13)
        canvas.blob([top, (middle[0], middle[1] - 3), end, (middle[0], middle[1] + 4)], (46, 60, 54))


def _sunset(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, 112, Gradient((110, 50, 116), (255, 150, 70)))
    sun = rng.uniform(70, 220)
    canvas.glow(sun, 96, 110, (255, 226, 140), 0.9)
    canvas.ellipse(sun, 98, 27, 27, Gradient((255, 244, 180), (255, 150, 60)))
    for _ in range(5):
        cx, cy = rng.uniform(0, _W), rng.uniform(14, 60)
        canvas.ellipse(cx, cy, rng.uniform(24, 46), rng.uniform(2.5, 5), (255, 170, 130), 0.6)
    canvas.box(0, 104, _W, 146, Gradient((226, 112, 76), (70, 50, 108)))
    for _ in range(26):
        y = rng.uniform(108, 144)
        x = sun + rng.normal(0, 6 + (y - 104) * 0.7)
        canvas.box(x - rng.uniform(3, 12), y, x + rng.uniform(3, 12), y + 1.2, (255, 214, 140), alpha=0.8)
    canvas.box(0, 140, _W, 154, Gradient((232, 184, 126), (206, 150, 100)))
    for x in (18, 266):
        _palm(canvas, x, 150, rng.uniform(82, 104), rng.uniform(8, 18) * (1 if x < 100 else -1))
    _road(canvas, (116, 80, 92), (250, 214, 160))


def _country(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((82, 170, 240), (206, 236, 252)))
    for _ in range(4):
        cx, cy = rng.uniform(10, _W - 10), rng.uniform(14, 52)
        for dx, dy, r in ((-13.0, 2.0, 10.0), (0.0, -3.0, 14.0), (14.0, 2.0, 11.0), (4.0, 5.0, 12.0)):
            canvas.ellipse(cx + dx, cy + dy, r, 0.66 * r, (255, 255, 255))
    canvas.blob("-60,170 0,100 80,84 170,112 260,80 340,110 340,170", Gradient((150, 208, 98), (92, 168, 76)))
    canvas.blob("-60,180 30,122 130,110 230,128 340,116 340,180", Gradient((126, 194, 76), (84, 158, 62)))
    barn = rng.uniform(20, 90)
    canvas.box(barn, 96, barn + 40, 126, Gradient((188, 70, 58), (146, 50, 46)))
    canvas.polygon([(barn - 4, 97), (barn + 6, 78), (barn + 34, 78), (barn + 44, 97)], (112, 62, 56))
    canvas.box(barn + 14, 106, barn + 27, 126, (246, 238, 226))
    for x in rng.uniform(100, _W, 5):
        size = rng.uniform(15, 22)
        canvas.box(float(x) - 2.5, 118, float(x) + 2.5, 144, (110, 76, 50))
        for dx, dy in ((-0.6, 0.1), (0.6, 0.1), (0.0, -0.5), (0.0, 0.2)):
            canvas.ellipse(
                float(x) + dx * size, 106 + dy * size, 0.8 * size, 0.75 * size, ball((70, 150, 62))
            )
    for x in rng.uniform(0, _W, 4):
        canvas.ellipse(float(x), 140, 8, 5, (250, 250, 246))
        canvas.ellipse(float(x) + 8, 138, 3, 2.6, (60, 56, 56))
    _road(canvas, (176, 150, 116), (222, 202, 168))


def _cactus(canvas: Canvas, x: float, y: float, size: float) -> None:
    fill = (58, 124, 72)
    canvas.line([(x, y), (x, y - size)], fill, 0.2 * size)
    for arm in ("0,-0.4 -0.3,-0.45 -0.34,-0.8", "0,-0.3 0.3,-0.35 0.34,-0.66"):
        canvas.curve(place(arm, x, y, size, size), fill, 0.14 * size)
    canvas.line([(x - 0.04 * size, y - 2), (x - 0.04 * size, y - size)], (110, 172, 104), 0.03 * size)


def _desert(canvas: Canvas, rng: np.random.Generator) -> None:
    canvas.box(0, 0, _W, _H, Gradient((92, 186, 214), (252, 232, 190)))
    for x in (rng.uniform(0, 90), rng.uniform(150, 250)):
        width, top = rng.uniform(50, 80), rng.uniform(58, 76)
        mesa = [(x - 12, 134), (x, top), (x + width, top + 2), (x + width + 14, 134)]
        canvas.polygon(mesa, Gradient((220, 122, 76), (178, 88, 60)))
        for band in range(3):
            y = top + 10 + 16 * band
            canvas.box(x, y, x + width, y + 3, (196, 100, 64))
    canvas.blob("-60,180 0,128 110,116 200,130 320,120 340,180", Gradient((246, 208, 136), (226, 172, 98)))
    for x in rng.permutation(np.array([20.0, 80.0, 150.0, 215.0, 268.0]))[:3]:
        _cactus(canvas, float(x), 146, rng.uniform(44, 66))
    _road(canvas, (206, 160, 104), (244, 224, 180))


def _traffic_light(canvas: Canvas, phase: float) -> None:
    canvas.line("22,128 22,60", (56, 58, 66), 5)
    canvas.box(4, 2, 40, 74, Gradient((66, 68, 76), (34, 36, 42)), 7)
    canvas.glow(22, 17, 21, (255, 60, 40), 1.0)
    canvas.ellipse(22, 17, 11, 11, Gradient((255, 170, 150), (240, 20, 20), "ball"))
    canvas.ellipse(22, 39, 9, 9, (92, 76, 36))
    canvas.ellipse(22, 60, 9, 9, (30, 76, 46))


def _dog(canvas: Canvas, phase: float) -> None:
    fur, dark = (196, 136, 76), (126, 80, 44)
    wag = 6 * math.sin(2 * math.pi * phase)
    canvas.shadow(36, 76, 34, 5)
    canvas.curve([(12, 66), (3, 56), (4 + wag, 42)], dark, 5)
    canvas.blob("10,74 14,50 30,36 46,38 50,60 48,75", ball(fur))
    canvas.line("44,50 46,74", fur, 8)
    canvas.line("36,52 37,74", darken(fur, 0.15), 8)
    canvas.ellipse(20, 68, 13, 9, ball(fur))
    canvas.ellipse(48, 24, 17, 16, ball(fur))
    canvas.blob("54,22 66,22 70,28 64,35 54,34", ball(lighten(fur, 0.35)))
    canvas.ellipse(68, 26, 3.6, 3, (30, 26, 28))
    canvas.ellipse(54, 19, 2.2, 2.6, (30, 26, 28))
    canvas.blob("36,12 42,10 42,28 36,38 30,30", dark)
    canvas.blob("60,34 64,35 64,43 60,43", (236, 104, 116))
    canvas.line("38,40 54,41", (214, 50, 50), 3)


def _balloon(canvas: Canvas, phase: float) -> None:
    canvas.blob("38,2 64,14 73,40 60,66 46,80 30,80 16,66 3,40 12,14", ball((244, 130, 40)))
    for shift, shade in ((-22, (250, 240, 220)), (22, (250, 240, 220)), (0, (120, 70, 180))):
        x, edge = 38 + shift, 38 + 0.4 * shift
        canvas.blob([(edge, 3), (x + 9, 38), (edge + 4, 79), (edge - 4, 79), (x - 9, 38)], polish(shade))
    for x in (30, 46):
        canvas.line([(x, 80), (38 + 0.5 * (x - 38), 94)], (90, 64, 44), 1)
    canvas.box(31, 93, 45, 104, Gradient((176, 122, 70), (126, 84, 48)), 2)


def _ice_cream(canvas: Canvas, phase: float) -> None:
    canvas.shadow(36, 104, 34, 5)
    canvas.line("36,66 36,24", (120, 110, 104), 2.4)
    canvas.blob("2,30 12,12 36,3 60,12 70,30 36,26", polish((250, 250, 250)))
    for x in (12, 36, 60):
        canvas.polygon(
            [(36, 4), (x - 6, 29 - abs(x - 36) * 0.06), (x + 6, 29 - abs(x - 36) * 0.06)], (70, 200, 190)
        )
    canvas.box(6, 62, 66, 92, Gradient((255, 250, 236), (236, 222, 200)), 4)
    canvas.box(6, 62, 66, 68, (70, 200, 190), 2)
    canvas.polygon("29,76 43,76 36,91", (216, 156, 84))
    canvas.ellipse(36, 75, 8, 6, ball((250, 176, 190)))
    for x, shade in ((16, (250, 176, 190)), (27, (150, 96, 64)), (48, (252, 240, 200))):
        canvas.ellipse(x, 60, 6.5, 5.5, ball(shade))
    for x in (18, 54):
        canvas.ellipse(x, 95, 9, 9, (60, 56, 60))
        canvas.ellipse(x, 95, 5, 5, (200, 200, 204))


STREET_PLACES = {
    "night": Backdrop(_night, has_grain=True),
    "snow": Backdrop(_snow, "snow", has_grain=True),
    "rain": Backdrop(_rain, "rain", has_grain=True),
    "sunset": Backdrop(_sunset, has_grain=True),
    "country": Backdrop(_country, has_grain=True),
    "desert": Backdrop(_desert, has_grain=True),
}

STREET_COMPANIONS = {
    "light": Companion((44, 130), _traffic_light, 226, 158, stop=214, in_front=False),
    "dog": Companion((76, 82), _dog, 74, 202),
    "balloon": Companion((76, 106), _balloon, 204, 100, drift=24, in_front=False),
    "cart": Companion((72, 110), _ice_cream, 226, 160, stop=204, in_front=False),
}


_GLASS = Gradient((214, 238, 250), (112, 158, 190))
_TYRE, _STEEL = (34, 34, 40), (196, 200, 208)
_SKIN, _DENIM = (236, 188, 150), (52, 66, 110)


def _wheel(canvas: Canvas, x: float, y: float, radius: float, phase: float, hub: Color = _STEEL) -> None:
    canvas.ellipse(x, y, radius, radius, _TYRE)
    canvas.ellipse(x, y, radius * 0.62, radius * 0.62, ball(hub))
    for spoke in range(5):
        angle = 2 * math.pi * (spoke + phase) / 5
        end = (x + 0.55 * radius * math.cos(angle), y + 0.55 * radius * math.sin(angle))
        canvas.line([(x, y), end], darken(hub, 0.5), radius * 0.1)
    canvas.ellipse(x, y, radius * 0.16, radius * 0.16, darken(hub, 0.6))


def _taxi(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(66, 64, 66, 7)
    canvas.box(56, 2, 80, 13, Gradient((255, 246, 190), (250, 214, 90)), 3)
    canvas.box(61, 6, 75, 9, (70, 60, 40), 1)
    canvas.blob("22,33 40,13 62,10 86,12 110,34 66,40", polish(color))
    canvas.polygon("32,32 44,16 63,15 63,32", _GLASS)
    canvas.polygon("67,32 67,15 84,16 101,32", _GLASS)
    canvas.blob("3,44 10,32 66,30 116,33 129,42 128,54 66,57 4,55", polish(color))
    for square in range(13):
        shade = (28, 28, 30) if square % 2 else (250, 250, 250)
        canvas.box(14 + 8 * square, 39, 22 + 8 * square, 43, shade)
        canvas.box(14 + 8 * square, 43, 22 + 8 * square, 47, (278 - shade[0],) * 3)
    canvas.line("65,33 65,55", darken(color, 0.45), 0.8)
    canvas.ellipse(124, 43, 4, 4, (255, 246, 200))
    canvas.ellipse(6, 44, 3, 4, (220, 50, 40))
    for x in (31, 101):
        canvas.ellipse(x, 54, 15, 13, darken(color, 0.6))
        _wheel(canvas, x, 54, 12, phase)


def _bus(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(78, 96, 78, 7)
    canvas.box(4, 3, 152, 88, polish(color), 9)
    canvas.box(4, 44, 152, 48, lighten(color, 0.65))
    for window in range(6):
        canvas.box(12 + 23 * window, 12, 31 + 23 * window, 34, _GLASS, 3)
    for window in range(4):
        canvas.box(12 + 23 * window, 53, 31 + 23 * window, 70, _GLASS, 3)
    canvas.box(106, 52, 124, 86, _GLASS, 3)
    canvas.line("115,53 115,85", darken(color, 0.5), 1)
    canvas.box(132, 51, 152, 71, _GLASS, 3)
    canvas.box(128, 37, 150, 43, (40, 40, 44), 1)
    canvas.box(132, 39, 146, 41, (255, 190, 60))
    canvas.ellipse(148, 79, 3, 4, (255, 246, 200))
    for x in (34, 92):
        canvas.ellipse(x, 86, 14, 13, darken(color, 0.6))
        _wheel(canvas, x, 85, 11, phase)
    _wheel(canvas, 137, 85, 11, phase)


def _tram(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(86, 92, 86, 6)
    canvas.line("70,22 88,8 70,1 104,1", (60, 64, 72), 1.6)
    canvas.box(60, 17, 112, 24, (120, 124, 132), 3)
    canvas.blob("3,80 5,38 16,23 86,21 156,23 167,38 169,80 86,84", polish(color))
    canvas.box(6, 60, 166, 66, (248, 248, 246))
    for window in range(5):
        canvas.box(14 + 30 * window, 33, 38 + 30 * window, 54, _GLASS, 4)
    for x in (42, 102):
        canvas.box(x, 32, x + 20, 80, Gradient((190, 220, 236), (96, 130, 160)), 2)
        canvas.line([(x + 10, 33), (x + 10, 79)], darken(color, 0.5), 1.2)
    canvas.ellipse(164, 70, 3, 3, (255, 246, 200))
    canvas.box(12, 80, 160, 86, (50, 52, 60), 2)
    for x in (28, 50, 122, 144):
        _wheel(canvas, x, 86, 6.5, phase, (150, 152, 160))


def _scooter(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(44, 96, 42, 6)
    _wheel(canvas, 17, 84, 12, phase)
    _wheel(canvas, 74, 84, 12, phase)
    canvas.blob("3,74 8,58 36,55 42,70 60,78 60,85 30,87 8,84", polish(color))
    canvas.blob("58,84 56,60 62,44 70,46 72,66 68,84", polish(color))
    canvas.blob("60,78 66,66 82,68 86,78 74,73", polish(color))
    canvas.ellipse(70, 48, 6, 6, ball(color))
    canvas.ellipse(75, 48, 3.4, 4.4, (255, 246, 200))
    canvas.box(8, 50, 40, 58, (60, 44, 40), 4)
    canvas.curve("26,50 44,54 50,68 54,80", _DENIM, 9)
    canvas.box(48, 78, 62, 84, (40, 36, 40), 3)
    canvas.blob("18,52 20,30 30,24 38,30 36,52", polish(color))
    canvas.curve("31,32 44,44 62,42", darken(color, 0.2), 6)
    canvas.line("60,42 70,38", _STEEL, 2.4)
    canvas.ellipse(62, 42, 3, 3, _SKIN)
    canvas.ellipse(33, 17, 9, 10, _SKIN)
    canvas.blob("22,20 23,8 33,3 43,9 42,15 30,16", polish(color))
    canvas.ellipse(39, 17, 1.2, 1.6, (40, 30, 30))


def _tractor(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(58, 94, 58, 7)
    canvas.line("94,46 94,24", (70, 70, 76), 4)
    canvas.box(20, 6, 62, 12, polish(color), 3)
    canvas.polygon("24,12 58,12 62,50 20,50", _GLASS)
    for x0, x1 in ((24, 20), (58, 62), (42, 42)):
        canvas.line([(x0, 11), (x1, 50)], darken(color, 0.15), 3)
    canvas.blob("56,74 58,46 84,43 108,46 113,56 112,74", polish(color))
    for line in range(4):
        canvas.line([(104, 52 + 5 * line), (111, 52 + 5 * line)], darken(color, 0.5), 1.4)
    canvas.ellipse(108, 49, 3, 3, (255, 246, 200))
    canvas.box(20, 50, 66, 72, polish(color), 5)
    for x, y, radius in ((32.0, 64.0, 29.0), (98.0, 77.0, 16.0)):
        for lug in range(14):
            angle = 2 * math.pi * (lug + phase) / 14
            end = (x + radius * math.cos(angle), y + radius * math.sin(angle))
            canvas.line([(x, y), end], _TYRE, 4)
        _wheel(canvas, x, y, radius - 1.0, phase, (238, 200, 60))


def _dump_truck(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(76, 92, 76, 7)
    canvas.blob("8,32 24,16 50,8 76,15 98,32 50,40", Gradient((226, 190, 120), (168, 122, 66)))
    canvas.polygon("2,26 104,30 98,68 14,68", polish(color))
    for rib in range(4):
        canvas.line([(20 + 23 * rib, 31), (24 + 20 * rib, 66)], darken(color, 0.3), 3)
    canvas.line("2,27 104,31", lighten(color, 0.5), 3)
    canvas.blob("106,76 106,32 112,24 132,24 142,46 150,52 150,76", polish(color))
    canvas.polygon("113,47 113,30 129,30 137,47", _GLASS)
    canvas.ellipse(147, 62, 3, 4, (255, 246, 200))
    canvas.box(8, 68, 150, 78, (52, 52, 60), 3)
    for x in (28.0, 56.0, 128.0):
        _wheel(canvas, x, 78, 14, phase)


VEHICLES = {
    "taxi": Subject((132, 70), _taxi, "drives", "cab"),
    "double-decker bus": Subject((156, 102), _bus, "drives", "bus"),
    "tram": Subject((172, 98), _tram, "drives", "streetcar"),
    "scooter": Subject((90, 102), _scooter, "rides", "moped"),
    "tractor": Subject((118, 100), _tractor, "drives", "farm tractor"),
    "dump truck": Subject((154, 98), _dump_truck, "drives", "truck full of sand"),
}
