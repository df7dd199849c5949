"""Random changes of colour, the only augmentation that contradicts no caption of what is where and how it moves.

Brightness, contrast, saturation, hue and gray-scaling are all affine in the colour of a pixel. So whatever comes of
them, in whatever order, is one 3 × 3 matrix and one shift for each clip, and a batch of clips takes one product.
Against a chain of image operations this differs in two points: values are cut to 0..255 once at the end and not after
each change, and hue is turned about the gray axis of the RGB cube rather than in HSV. By a third of a turn both do the
same: red becomes green, green blue, blue red.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["ColorJitter", "brightness", "contrast", "hue", "luma", "saturation"]

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
_CHANGES = 4


class ColorJitter:
    """Changes the colours of each clip at random, those of all its frames alike.

    Args:
        strength: brightness, contrast and saturation become 1 − strength to 1 + strength of what they were; hue turns
            by up to a quarter of the strength, in turns, either way. In random order.
        share: of the clips that are changed so.
        gray: share of the clips that lose their colour, whether changed before or not.
    """

    def __init__(self, strength: float, *, share: float, gray: float) -> None:
        self.strength = strength
        self.share = share
        self.gray = gray

    def __call__(self, clips: Tensor) -> Tensor:
        """``uint8 [N, …, 3]`` to the same, with torch's own generator."""
        colours = clips.flatten(1, -2).float()  # [N, P, 3]
        with torch.autocast(
            clips.device.type, enabled=False
        ):  # eight bits of a bfloat16 are too few for a colour
            maps = self._maps(colours.mean(dim=1))
            changed = torch.baddbmm(maps[:, 3:, :3], colours, maps[:, :3, :3])
        return changed.round_().clamp_(0, 255).to(torch.uint8).view_as(clips)

    def _maps(self, mean: Tensor) -> Tensor:
        """What becomes of row vectors (red, green, blue, 1), ``[N, 4, 4]``; ``mean`` colours are ``[N, 3]``."""
        count, identity = len(mean), torch.eye(4, device=mean.device)
        mean = torch.cat([mean, torch.ones_like(mean[:, :1])], dim=1).unsqueeze(1)
        draws = 2 * torch.rand(_CHANGES, count, device=mean.device) - 1
        lightness, spread, colour = 1 + self.strength * draws[:3]
        turn = self.strength / 4 * draws[3]
        order = torch.rand(count, _CHANGES, device=mean.device).argsort(dim=1)
        maps = identity.expand(count, 4, 4)
        for place in range(_CHANGES):
            middle = luma((mean @ maps)[:, 0, :3])
            changes = torch.stack(
                [brightness(lightness), contrast(spread, middle), saturation(colour), hue(turn)]
            )
            maps = maps @ changes[order[:, place], torch.arange(count, device=mean.device)]
        maps = torch.where(_chosen(self.share, mean), maps, identity)
        return torch.where(_chosen(self.gray, mean), maps @ saturation(torch.zeros_like(turn)), maps)


def luma(colours: Tensor) -> Tensor:
    """How light colours ``[…, 3]`` are."""
    return colours @ torch.tensor(_LUMA, device=colours.device)


def brightness(factor: Tensor) -> Tensor:
    """``factor [N]`` times as bright; like the others ``[N, 4, 4]``, for row vectors (red, green, blue, 1)."""
    return _affine(factor[:, None, None] * torch.eye(3, device=factor.device))


def contrast(factor: Tensor, middle: Tensor) -> Tensor:
    """``factor`` times as far from a gray ``[N]``."""
    maps = brightness(factor)
    maps[:, 3, :3] = ((1 - factor) * middle).unsqueeze(1)
    return maps


def saturation(factor: Tensor) -> Tensor:
    """``factor`` times as strong in colour, gray at 0; how light a pixel is stays."""
    gray = torch.tensor(_LUMA, device=factor.device)[:, None].expand(3, 3)
    factor = factor[:, None, None]
    return _affine(factor * torch.eye(3, device=factor.device) + (1 - factor) * gray)


def hue(turns: Tensor) -> Tensor:
    """Turned by ``turns``, from red towards green: a rotation about the axis of grays (Rodrigues' formula)."""
    angle = 2 * math.pi * turns[:, None, None]
    cross = torch.tensor([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]], device=turns.device) / math.sqrt(3)
    cosine = angle.cos()
    return _affine(cosine * torch.eye(3, device=turns.device) + (1 - cosine) / 3 + angle.sin() * cross)


def _affine(linear: Tensor) -> Tensor:
    maps = torch.eye(4, device=linear.device).repeat(len(linear), 1, 1)
    maps[:, :3, :3] = linear
    return maps


def _chosen(share: float, mean: Tensor) -> Tensor:
    return (torch.rand(len(mean), device=mean.device) < share)[:, None, None]
