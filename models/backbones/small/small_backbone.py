"""EfficientNet-Lite0 or -Lite2 and all-MiniLM-L6-v2, joined by the names of the ImageNet classes.

The two towers were trained separately. The joint space is the text tower's: the image classifier's weights relate image
features to the 1,000 classes, and the class names' text vectors relate the classes to texts (a linear form of ConSE:
Norouzi et al., Zero-Shot Learning by Convex Combination of Semantic Embeddings, ICLR 2014). Text vectors are centered
at the mean of generic texts before they are normalized.

Batch normalization is folded into the convolutions. The published weights are a pickle with the names of another
implementation, read by torch's restricted unpickler. Folding computes in float64 with operations that IEEE 754 rounds
correctly, so the folded weights, and with them the backbone's fingerprint, are equal on every machine.

The published network ends with its feature map, so no pre-trained weights exist for the blocks on top. A frozen block
has no weights and returns its input; adapters inside it see the normalized tokens. A trained block starts as the same
function: its projections are identities, and those back to the tokens are zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertModel

from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec, TextBackground
from models.backbones.bert_text_tower import BertBackbone, BertTextTower, CenteredUnitVectors, Towers
from models.backbones.bert_tokenizer import TEXT_LENGTH, BertTokenizer
from models.backbones.frozen_tower import FrozenTower, require_equal
from models.backbones.small.small_files import (
    RESERVED,
    SMALL_MODELS,
    TEXT_PACKAGE,
    SmallModel,
    load_tokenizer,
    verified_folder,
)
from models.backbones.tower_computation import OpenBlock
from models.backbones.transformers_backbone import load_model

if TYPE_CHECKING:
    from models.backbones.compiled_towers import EfficientNetEngine


_HEAD_WIDTH = 64


class FrameBlock(nn.Module, OpenBlock):
    """A pre-norm block, a function on tokens ``[..., P+1, width]``; a frozen one has neither ``attention`` nor
    ``perceptron``.
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
    """An EfficientNet-Lite's convolutions, blocks on top, and a projection ``[1280, dim]`` of the pooled features."""

    def __init__(self, architecture: str, weights: Mapping[str, Tensor], projection: Tensor) -> None:
        super().__init__()
        self.cnn: Any = _architecture(architecture)
        self.cnn.load_state_dict(weights, assign=True)
        self.cnn.to(memory_format=torch.channels_last)
        self.blocks = nn.ModuleList(FrameBlock(FEATURES) for _ in range(_BLOCKS))
        self.ln_post = nn.Identity()
        self.proj = nn.Parameter(projection)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute feature maps ``[n, 1280, h, w]`` from normalized pixels ``[n, 3, H, W]``."""
        size = _CHUNK if pixels.device.type == "cpu" else max(1, len(pixels))
        return torch.cat([self.cnn.forward_features(chunk) for chunk in torch.split(pixels, size)])


def folded_weights(model: SmallModel) -> dict[str, Tensor]:
    """Load the convolutions' folded weights from the installed package, named as by :func:`_architecture`; raise
    BackboneUnavailable if the package is missing or altered.
    """
    folder = verified_folder(model.image_package)
    (file,) = model.image_package.digests
    published = torch.load(folder / file, map_location="cpu", weights_only=True)
    # Both implementations list each convolution, followed by its batch normalization, in the order of computation.
    convolutions = [name for name, tensor in published.items() if tensor.ndim == 4]
    normalizations = [name.rpartition(".")[0] for name in published if name.endswith(".running_mean")]
    layers = _architecture(model.architecture).named_modules()
    targets = [name for name, layer in layers if isinstance(layer, nn.Conv2d)]
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


def _architecture(name: str) -> Any:
    """Build the network without weights or classifier, and with biases instead of batch normalization."""
    with torch.device("meta"):
        cnn = timm.create_model(name, pretrained=False, num_classes=0)
        for parent in cnn.modules():
            convolution = None
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Conv2d):
                    convolution = child
                elif isinstance(child, BatchNormAct2d) and convolution is not None:
                    convolution.bias = nn.Parameter(torch.empty(convolution.out_channels))
                    setattr(parent, name, child.act)
    return cnn


_GRID = 2  # tokens per side of a frame; training time is proportional to their number
_NETWORK = "cnn."  # name prefix of the frozen network's weights in the image tower
# The published weights normalize pixels of 0..255 as (x - 127) / 128.
_MEAN = (127 / 255,) * 3
_STD = (128 / 255,) * 3


class SmallBackbone(BertBackbone):
    """A frozen convolutional network with transformer blocks on its output, and a sentence encoder."""

    has_open_blocks = True
    has_frozen_network = True

    def __init__(
        self, name: str, clip: Towers, tokenizer: BertTokenizer, spec: FrameSpec, background: TextBackground
    ) -> None:
        self._background = background
        digest = hashlib.sha256()
        for part, array in sorted(background._asdict().items()):
            digest.update(f"{part} torch.{array.dtype} {list(array.shape)}".encode() + array.tobytes())
        self._background_digest = digest.hexdigest()
        super().__init__(name, clip, tokenizer, spec, _MEAN, _STD)
        self._frozen_images = FrozenTower(self._compile_images)

    @property
    def text_background(self) -> TextBackground:
        return self._background

    @property
    def engine(self) -> str:
        towers = self._frozen_text, self._frozen_images
        engines = [tower.engine() for tower in towers] if self.device.type == "cpu" else [None]
        if None in engines:
            return super().engine
        from models.backbones.compiled_towers import ENGINE

        return ENGINE

    @property
    def semantic_dim(self) -> int:
        return self.dim - RESERVED

    @property
    def visual_blocks(self) -> list[Any]:
        return list(self.clip.visual.blocks)

    @torch.no_grad()
    def embed_frames(self, frames: Tensor) -> Tensor:
        """Pool features ``[n, M, 1+4, 1280]`` of frames ``uint8 [n, M, size, size, 3]`` and of their overlapping
        quarters, in single precision.
        """
        with torch.autocast(self.device.type, enabled=False):
            maps = self._feature_maps(frames)
        pooled = maps.flatten(2).transpose(1, 2).mean(dim=1, keepdim=True)
        parts = F.adaptive_avg_pool2d(maps, _GRID).flatten(2).transpose(1, 2)
        tokens = torch.cat([pooled, parts], dim=1)
        return tokens.view(*frames.shape[:2], *tokens.shape[1:])

    @torch.no_grad()
    def video_features(self, frames: Tensor) -> Tensor:
        """Average the pooled features, which are not negative, over frames, and take the square root.

        The root compresses a frame's few large features, as power normalization does for Fisher vectors (Perronnin et
        al., ECCV 2010).
        """
        pooled = self._feature_maps(frames).mean(dim=(2, 3)).float()
        features: Tensor = pooled.view(*frames.shape[:2], -1).mean(dim=1).clamp(min=0).sqrt()
        return features

    def project_features(self, features: Tensor) -> Tensor:
        return super().project_features(features.square())

    def clone(self) -> Backbone:
        return _with_weights(super().clone())

    def clone_image_tower(self) -> Backbone:
        return _with_weights(super().clone_image_tower())

    def unfreeze(self) -> None:
        super().unfreeze()
        self.clip.visual.cnn.requires_grad_(False)

    def _copy(self, shared: dict[int, Any]) -> Backbone:
        same = self.clip.visual.cnn, self._frozen_images
        return super()._copy({**shared, **{id(part): part for part in same}})

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: t for name, t in super().tensors().items() if not name.startswith(f"clip.visual.{_NETWORK}")
        }

    def _load(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        frozen = {
            name: t
            for name, t in module.state_dict().items()
            if name.removeprefix("visual.").startswith(_NETWORK)
        }
        super()._load(module, {**frozen, **tensors})

    def _feature_maps(self, frames: Tensor) -> Tensor:
        """Compute feature maps ``[n·M, 1280, h, w]`` of frames ``uint8 [n, M, size, size, 3]``."""
        is_float32 = self.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        if is_float32 and (engine := self._frozen_images.engine()) is not None:
            return torch.from_numpy(engine(frames.flatten(0, 1).cpu().numpy(), torch.get_num_threads()))
        maps: Tensor = self.clip.visual(self.pixels(frames))
        return maps

    def _compile_images(self) -> EfficientNetEngine:
        from models.backbones.compiled_towers import EfficientNetEngine

        size, _ = self.spec.shape
        weights = {name: weight.numpy() for name, weight in self.clip.visual.cnn.state_dict().items()}
        engine = EfficientNetEngine(weights, size)
        frame = torch.arange(size * size * 3).view(1, 1, size, size, 3).remainder(251).to(torch.uint8)
        with torch.no_grad():
            require_equal(engine(frame[0].numpy()), self.clip.visual(self.pixels(frame)).numpy())
        return engine

    def _identity(self) -> list[Any]:
        return [self.name, self.spec.size, TEXT_LENGTH, self._tokenizer.digest, self._background_digest]


def _with_weights(backbone: Backbone) -> Backbone:
    """Give the image blocks weights that can be trained."""
    for block in backbone.visual_blocks:
        block.add_weights(backbone.device)
    return backbone


def load_small(name: str, frames: int | None = None) -> SmallBackbone:
    """Load ``small`` or ``lite2`` with its weights; raise BackboneUnavailable if a package or the derived constants are
    missing, or a package is altered.
    """
    model = SMALL_MODELS[name]
    constants = model.load_constants()
    projection = F.pad(torch.from_numpy(constants.projection), (0, RESERVED))
    image = ImageTower(model.architecture, folded_weights(model), projection)
    source = verified_folder(TEXT_PACKAGE)
    bert = load_model(name, str(source), BertModel, add_pooling_layer=False)
    width = len(constants.text_center)
    text = BertTextTower(
        bert, torch.eye(width, width + RESERVED), CenteredUnitVectors(torch.from_numpy(constants.text_center))
    )
    background = TextBackground(constants.background_mean, constants.background_precision)
    return SmallBackbone(name, Towers(image, text), load_tokenizer(), model.frame_spec(frames), background)
