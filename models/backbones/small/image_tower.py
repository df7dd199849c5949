"""EfficientNet-Lite0 as the image tower of ``small``, with batch normalization folded into the convolutions.

The published weights are a pickle with the names of another implementation, read by torch's restricted unpickler.
Folding computes in float64 with operations that IEEE 754 rounds correctly, so the folded weights, and with them the
backbone's fingerprint, are equal on every machine.

The published network ends with its feature map, so no pre-trained weights exist for the blocks on top. A frozen block
has no weights and returns its input; adapters inside it see the normalized tokens. A trained block starts as the same
function: its projections are identities, and those back to the tokens are zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.open_blocks import OpenBlock
from models.backbones.small.small_files import IMAGE_PACKAGE, verified_folder

_HEAD_WIDTH = 64


class FrameBlock(nn.Module, OpenBlock):
    """A pre-norm block, a function on tokens ``[..., P+1, width]``.

    Attributes:
        attention: Self-attention among a frame's tokens; None in a frozen block.
        perceptron: Perceptron with one hidden layer of the same width; None in a frozen block.
    """

    attention: nn.MultiheadAttention | None
    perceptron: nn.Sequential | None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self._width = width
        self.attention = self.perceptron = None

    def add_weights(self, device: torch.device) -> None:
        """Add weights that leave the block's function unchanged."""
        if self.attention is not None:
            return
        width = self._width
        with torch.device(device):
            self.attention = nn.MultiheadAttention(width, self.heads)
            hidden = nn.Linear(width, width)
            self.perceptron = nn.Sequential(hidden, nn.GELU(), nn.Linear(width, width))
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.zero_()
                self.attention.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
                hidden.weight.copy_(torch.eye(width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.complete(tokens, self.attend(self.normalize(tokens)))

    def normalize(self, states: Tensor) -> Tensor:
        return F.layer_norm(states, (self._width,))

    def project(self, normalized: Tensor) -> Tensor:
        attention = cast(nn.MultiheadAttention, self.attention)
        return F.linear(normalized, attention.in_proj_weight, attention.in_proj_bias)

    def output(self, joined: Tensor) -> Tensor:
        return cast(Tensor, cast(nn.MultiheadAttention, self.attention).out_proj(joined))

    def attend(self, normalized: Tensor, count: int | None = None) -> Tensor:
        if self.attention is None:
            return torch.zeros_like(normalized[..., :count, :])
        return super().attend(normalized, count)

    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        states = states + attended
        if self.perceptron is None:
            return states
        return states + cast(Tensor, self.perceptron(self.normalize(states)))


FEATURES = 1280  # channels in the last feature map
_EPSILON = 1e-3  # of the batch normalization
_BLOCKS = 2  # one for the previous frame and one for the next
_CHUNK = 8  # frames per forward pass on a CPU: more activations would not fit its caches


class ImageTower(nn.Module):
    """The convolutions of EfficientNet-Lite0, blocks on their output, and a projection of the pooled features.

    Args:
        projection: ``[1280, dim]``.
    """

    def __init__(self, weights: Mapping[str, Tensor], projection: Tensor) -> None:
        super().__init__()
        self.cnn: Any = _architecture()
        self.cnn.load_state_dict(weights, assign=True)
        self.cnn.to(memory_format=torch.channels_last)
        self.blocks = nn.ModuleList(FrameBlock(FEATURES) for _ in range(_BLOCKS))
        self.ln_post = nn.Identity()
        self.proj = nn.Parameter(projection)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute feature maps ``[n, 1280, h, w]`` from normalized pixels ``[n, 3, H, W]``."""
        size = _CHUNK if pixels.device.type == "cpu" else max(1, len(pixels))
        return torch.cat([self.cnn.forward_features(chunk) for chunk in torch.split(pixels, size)])


def folded_weights() -> dict[str, Tensor]:
    """Load the convolutions' weights from the installed package.

    Raises:
        BackboneUnavailable: The package is missing or altered.
    """
    folder = verified_folder(IMAGE_PACKAGE)
    (file,) = IMAGE_PACKAGE.digests
    return _fold(torch.load(folder / file, map_location="cpu", weights_only=True))


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """Compute the SHA-256 digest of names, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def _architecture() -> Any:
    """Build the network without weights or classifier, and with biases instead of batch normalization."""
    with torch.device("meta"):
        cnn = timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0)
        for parent in cnn.modules():
            convolution = None
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Conv2d):
                    convolution = child
                elif isinstance(child, BatchNormAct2d) and convolution is not None:
                    convolution.bias = nn.Parameter(torch.empty(convolution.out_channels))
                    setattr(parent, name, child.act)
    return cnn


def _fold(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fold the published weights, and name them as :func:`_architecture` does.

    Both implementations list each convolution, followed by its batch normalization, in the order of computation.
    """
    convolutions = [name for name, tensor in published.items() if tensor.ndim == 4]
    normalizations = [name.rpartition(".")[0] for name in published if name.endswith(".running_mean")]
    targets = [name for name, layer in _architecture().named_modules() if isinstance(layer, nn.Conv2d)]
    folded = {}
    for target, convolution, normalization in zip(targets, convolutions, normalizations, strict=True):
        weight, bias, mean, variance = (
            published[f"{normalization}.{part}"].double().numpy()
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / np.sqrt(variance + _EPSILON)
        kernel = published[convolution].double().numpy() * scale[:, None, None, None]
        folded[f"{target}.weight"] = torch.from_numpy(np.ascontiguousarray(kernel, np.float32))
        folded[f"{target}.bias"] = torch.from_numpy((bias - mean * scale).astype(np.float32))
    return folded
