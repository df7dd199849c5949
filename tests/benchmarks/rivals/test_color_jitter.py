"""Color jitter: each operation on known colors, and their composition."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.rivals.co2l import ColorJitter, hue

RED, GREEN, BLUE, GRAY = (200.0, 0, 0), (0, 200.0, 0), (0, 0, 200.0), (90.0, 90, 90)


def _apply(maps: Tensor, *colors: tuple[float, ...]) -> list[list[float]]:
    rows = torch.cat([torch.tensor(colors), torch.ones(len(colors), 1)], dim=1)
    return [[round(value, 2) + 0.0 for value in row] for row in (rows @ maps[0])[:, :3].tolist()]


def test_hue_by_a_third_of_a_turn_permutes_the_channels_as_in_hsv() -> None:
    third = hue(torch.tensor([1 / 3]))
    picture = (180.0, 90.0, 30.0)
    angle, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in picture))
    turned = [255 * level for level in colorsys.hsv_to_rgb((angle + 1 / 3) % 1, saturation, value)]
    assert _apply(third, picture)[0] == pytest.approx(turned, abs=0.02)
    assert _apply(third, RED, GREEN, BLUE, GRAY) == [list(GREEN), list(BLUE), list(RED), list(GRAY)]
    there_and_back = hue(torch.tensor([0.07])) @ hue(torch.tensor([-0.07]))
    torch.testing.assert_close(there_and_back[0], torch.eye(4))


def test_jitter_equals_the_operations_in_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference applies the operations one by one, with the mean after the previous operation."""
    torch.manual_seed(3)
    clips = torch.randint(90, 160, (5, 2, 3, 3, 3), dtype=torch.uint8)  # no value is clamped at 0 or 255
    draws = [torch.rand(4, 5), torch.rand(5, 4), torch.zeros(5), torch.ones(5)]
    given = iter(draws)
    monkeypatch.setattr(torch, "rand", lambda *shape, device: next(given))
    with torch.autocast("cpu", torch.bfloat16):  # as in training
        changed = ColorJitter(0.2, share=0.8, gray=0.2)(clips)

    strengths = 2 * draws[0].double() - 1
    luma = np.array([0.299, 0.587, 0.114])
    for clip in range(5):
        pixels = clips[clip].double().numpy().reshape(-1, 3)
        light, spread, strong = (1 + 0.2 * strengths[:3, clip]).tolist()
        for change in draws[1][clip].argsort().tolist():
            if change == 0:
                pixels = light * pixels
            elif change == 1:
                pixels = spread * pixels + (1 - spread) * (pixels @ luma).mean()
            elif change == 2:
                pixels = strong * pixels + (1 - strong) * (pixels @ luma)[:, None]
            else:
                turn = hue(0.05 * strengths[3, clip : clip + 1])[0, :3, :3]
                pixels = pixels @ turn.numpy()
        assert np.abs(pixels - changed[clip].numpy().reshape(-1, 3)).max() <= 0.51
