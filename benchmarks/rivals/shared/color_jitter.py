"""Random color changes of video clips.

Color is the only augmentation that does not contradict captions about positions and motion. Brightness, contrast,
saturation, hue and grayscale are affine in a pixel's color; any sequence of them is one 3 × 3 matrix and one offset per
clip, so a batch of clips needs one matrix product. Two points differ from a chain of image operations: values are
clamped to 0..255 once at the end, and hue rotates about the gray axis of the RGB cube rather than in HSV. Both hue
rotations agree for a third of a turn (red to green, green to blue, blue to red).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
_OPERATIONS = 4


class ColorJitter:
    """Changes each clip's colors at random, in the same way for all its frames.

    Args:
        strength: Brightness, contrast and saturation factors are uniform in 1 ± strength; hue rotates by up to a
            quarter of the strength (in turns) in either direction. The order of the operations is random.
        share: Probability that a clip is jittered.
        gray: Probability that a clip becomes grayscale, independent of jitter.
    """

    def __init__(self, strength: float, *, share: float, gray: float) -> None:
        self.strength = strength
        self.share = share
        self.gray = gray

    def __call__(self, clips: Tensor) -> Tensor:
        """Change copies of clips ``uint8 [N, …, 3]``, drawing from torch's global generator."""
        colors = clips.flatten(1, -2).float()  # [N, P, 3]
        # bfloat16 has 8 bits of precision, too few for a color.
        with torch.autocast(clips.device.type, enabled=False):
            maps = self._color_maps(colors.mean(dim=1))
            changed = torch.baddbmm(maps[:, 3:, :3], colors, maps[:, :3, :3])
        return changed.round_().clamp_(0, 255).to(torch.uint8).view_as(clips)

    def _color_maps(self, mean: Tensor) -> Tensor:
        """Draw maps ``[N, 4, 4]`` of row vectors (red, green, blue, 1) for clips of ``mean`` color ``[N, 3]``."""
        count, identity = len(mean), torch.eye(4, device=mean.device)
        mean = torch.cat([mean, torch.ones_like(mean[:, :1])], dim=1).unsqueeze(1)
        draws = 2 * torch.rand(_OPERATIONS, count, device=mean.device) - 1
        brightness_factor, contrast_factor, saturation_factor = 1 + self.strength * draws[:3]
        turns = self.strength / 4 * draws[3]
        order = torch.rand(count, _OPERATIONS, device=mean.device).argsort(dim=1)
        maps = identity.expand(count, 4, 4)
        for position in range(_OPERATIONS):
            middle = luma((mean @ maps)[:, 0, :3])
            operations = torch.stack(
                [
                    brightness(brightness_factor),
                    contrast(contrast_factor, middle),
                    saturation(saturation_factor),
                    hue(turns),
                ]
            )
            maps = maps @ operations[order[:, position], torch.arange(count, device=mean.device)]
        maps = torch.where(_random_mask(self.share, mean), maps, identity)
        return torch.where(_random_mask(self.gray, mean), maps @ saturation(torch.zeros_like(turns)), maps)


def luma(colors: Tensor) -> Tensor:
    """Compute the luma of colors ``[…, 3]``."""
    return colors @ torch.tensor(_LUMA, device=colors.device)


def brightness(factor: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` of row vectors (red, green, blue, 1) that scale colors by ``factor [N]``."""
    return _affine_map(factor[:, None, None] * torch.eye(3, device=factor.device))


def contrast(factor: Tensor, middle: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` that scale the distance of colors to the grays ``middle [N]`` by ``factor [N]``."""
    maps = brightness(factor)
    maps[:, 3, :3] = ((1 - factor) * middle).unsqueeze(1)
    return maps


def saturation(factor: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` that scale saturation by ``factor [N]`` (0: grayscale) and keep the luma."""
    gray = torch.tensor(_LUMA, device=factor.device)[:, None].expand(3, 3)
    factor = factor[:, None, None]
    return _affine_map(factor * torch.eye(3, device=factor.device) + (1 - factor) * gray)


def hue(turns: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` that rotate colors about the gray axis by ``turns [N]`` (Rodrigues' formula).

    Positive turns rotate red towards green.
    """
    angle = 2 * math.pi * turns[:, None, None]
    cross = torch.tensor([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]], device=turns.device) / math.sqrt(3)
    cosine = angle.cos()
    return _affine_map(cosine * torch.eye(3, device=turns.device) + (1 - cosine) / 3 + angle.sin() * cross)


def _affine_map(linear: Tensor) -> Tensor:
    maps = torch.eye(4, device=linear.device).repeat(len(linear), 1, 1)
    maps[:, :3, :3] = linear
    return maps


def _random_mask(share: float, mean: Tensor) -> Tensor:
    return (torch.rand(len(mean), device=mean.device) < share)[:, None, None]
