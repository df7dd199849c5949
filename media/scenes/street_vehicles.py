"""Vehicles, facing right. Each function draws on a canvas of the size in :data:`VEHICLES`."""

from __future__ import annotations

import math

from media.scenes.painting import Canvas, Color, Gradient, ball, darken, lighten, polish
from media.scenes.scene_model import Subject

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
    canvas.blob([(22, 33), (40, 13), (62, 10), (86, 12), (110, 34), (66, 40)], polish(color))
    canvas.polygon([(32, 32), (44, 16), (63, 15), (63, 32)], _GLASS)
    canvas.polygon([(67, 32), (67, 15), (84, 16), (101, 32)], _GLASS)
    canvas.blob(
        [(3, 44), (10, 32), (66, 30), (116, 33), (129, 42), (128, 54), (66, 57), (4, 55)], polish(color)
    )
    for square in range(13):
        shade = (28, 28, 30) if square % 2 else (250, 250, 250)
        canvas.box(14 + 8 * square, 39, 22 + 8 * square, 43, shade)
        canvas.box(14 + 8 * square, 43, 22 + 8 * square, 47, (278 - shade[0],) * 3)
    canvas.line([(65, 33), (65, 55)], darken(color, 0.45), 0.8)
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
    canvas.line([(115, 53), (115, 85)], darken(color, 0.5), 1)
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
    canvas.line([(70, 22), (88, 8), (70, 1), (104, 1)], (60, 64, 72), 1.6)
    canvas.box(60, 17, 112, 24, (120, 124, 132), 3)
    canvas.blob(
        [(3, 80), (5, 38), (16, 23), (86, 21), (156, 23), (167, 38), (169, 80), (86, 84)], polish(color)
    )
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
    canvas.blob([(3, 74), (8, 58), (36, 55), (42, 70), (60, 78), (60, 85), (30, 87), (8, 84)], polish(color))
    canvas.blob([(58, 84), (56, 60), (62, 44), (70, 46), (72, 66), (68, 84)], polish(color))
    canvas.blob([(60, 78), (66, 66), (82, 68), (86, 78), (74, 73)], polish(color))
    canvas.ellipse(70, 48, 6, 6, ball(color))
    canvas.ellipse(75, 48, 3.4, 4.4, (255, 246, 200))
    canvas.box(8, 50, 40, 58, (60, 44, 40), 4)
    canvas.curve([(26, 50), (44, 54), (50, 68), (54, 80)], _DENIM, 9)
    canvas.box(48, 78, 62, 84, (40, 36, 40), 3)
    canvas.blob([(18, 52), (20, 30), (30, 24), (38, 30), (36, 52)], polish(color))
    canvas.curve([(31, 32), (44, 44), (62, 42)], darken(color, 0.2), 6)
    canvas.line([(60, 42), (70, 38)], _STEEL, 2.4)
    canvas.ellipse(62, 42, 3, 3, _SKIN)
    canvas.ellipse(33, 17, 9, 10, _SKIN)
    canvas.blob([(22, 20), (23, 8), (33, 3), (43, 9), (42, 15), (30, 16)], polish(color))
    canvas.ellipse(39, 17, 1.2, 1.6, (40, 30, 30))


def _tractor(canvas: Canvas, color: Color, phase: float) -> None:
    canvas.shadow(58, 94, 58, 7)
    canvas.line([(94, 46), (94, 24)], (70, 70, 76), 4)
    canvas.box(20, 6, 62, 12, polish(color), 3)
    canvas.polygon([(24, 12), (58, 12), (62, 50), (20, 50)], _GLASS)
    for x0, x1 in ((24, 20), (58, 62), (42, 42)):
        canvas.line([(x0, 11), (x1, 50)], darken(color, 0.15), 3)
    canvas.blob([(56, 74), (58, 46), (84, 43), (108, 46), (113, 56), (112, 74)], polish(color))
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
    canvas.blob(
        [(8, 32), (24, 16), (50, 8), (76, 15), (98, 32), (50, 40)], Gradient((226, 190, 120), (168, 122, 66))
    )
    canvas.polygon([(2, 26), (104, 30), (98, 68), (14, 68)], polish(color))
    for rib in range(4):
        canvas.line([(20 + 23 * rib, 31), (24 + 20 * rib, 66)], darken(color, 0.3), 3)
    canvas.line([(2, 27), (104, 31)], lighten(color, 0.5), 3)
    canvas.blob([(106, 76), (106, 32), (112, 24), (132, 24), (142, 46), (150, 52), (150, 76)], polish(color))
    canvas.polygon([(113, 47), (113, 30), (129, 30), (137, 47)], _GLASS)
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
