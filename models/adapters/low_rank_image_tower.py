"""Low-rank updates to an image tower (LoRA): W + s·BA for every matrix in every block, with W frozen.

Unlike TAME on the text side, these updates are not routed: a video is embedded once, by the release that learns its
task, so its tower need not remember other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from models.backbones.backbone import Backbone


class LowRankUpdate(nn.Module):
    """Parametrization W → W + s·BA; initially the identity, since B is zero.

    Args:
        weight: W, ``[out, in]``, frozen.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        out, inner = weight.shape
        self.scale = scale
        self.a = nn.Parameter(torch.empty(rank, inner, device=weight.device))
        self.b = nn.Parameter(torch.zeros(out, rank, device=weight.device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return torch.add(weight, self.b @ self.a, alpha=self.scale)


class LowRankImageTower(nn.Module):
    """A backbone's image tower with low-rank updates.

    Args:
        backbone: Backbone to copy; it is not modified.

    Attributes:
        backbone: Copy whose image tower uses the updated weights.
    """

    def __init__(self, backbone: Backbone, *, rank: int, scale: float) -> None:
        super().__init__()
        self.backbone = backbone.clone_image_tower()
        self._updates: dict[str, LowRankUpdate] = {}
        for index, block in enumerate(self.backbone.visual_blocks):
            for name, module in list(block.named_modules()):
                for weight in ("weight", "in_proj_weight"):
                    matrix = getattr(module, weight, None)
                    if isinstance(matrix, nn.Parameter) and matrix.ndim == 2:
                        update = LowRankUpdate(matrix, rank, scale)
                        parametrize.register_parametrization(module, weight, update)
                        self._updates[f"{index}.{name}.{weight}"] = update

    def update_parameters(self) -> list[nn.Parameter]:
        """List the matrices A and B of all updates."""
        return [parameter for update in self._updates.values() for parameter in update.parameters()]

    def b_matrices(self) -> list[nn.Parameter]:
        """List every update's matrix B, which is zero at first and scales the whole update."""
        return [update.b for update in self._updates.values()]

    def tensors(self) -> dict[str, Tensor]:
        """Collect the matrices A and B by block, projection and letter, as a release stores them."""
        return {
            f"{name}.{letter}": tensor.detach()
            for name, update in self._updates.items()
            for letter, tensor in update.named_parameters()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load matrices from :meth:`tensors`.

        Raises:
            KeyError, RuntimeError: A name is missing, or a shape differs.
        """
        for name, update in self._updates.items():
            update.load_state_dict({letter: tensors[f"{name}.{letter}"] for letter in ("a", "b")})
