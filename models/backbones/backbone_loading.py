"""Load pre-trained backbones by name, for methods to adapt or train.

======================================================  =====================================================
``tiny``                                                small CLIP that ships with the project
``small``                                               EfficientNet-Lite0 and MiniLM, installed with the project
``lite2``                                               the same with EfficientNet-Lite2, from the extra ``lite2``
``open_clip:<model>/<tag, local file or folder>``       any model of open_clip; frozen unless it is a plain CLIP
``transformers:<name or folder>``                       a dual encoder of transformers, frozen
======================================================  =====================================================

Backbones take frames ``uint8 [n, M, H, W, 3]`` and normalize them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.backbones import SMALL_NAMES, TRANSFORMERS_PREFIX
from models.backbones.backbone_description import FrameSpec
from models.backbones.open_clip_files import BACKBONE_NAMES, OPEN_CLIP_PREFIX, read_open_clip
from models.errors import BackboneUnavailable

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone

# Each backbone's module is imported on use: its library takes seconds to import, and most processes need one or none.
_TINY = "tiny"
_TINY_FRAMES = 8


def frame_spec(name: str, frames: int | None = None) -> FrameSpec:
    """Look up how many frames a backbone reads per video, and their size, without its weights; errors are those of
    :func:`load_backbone`.
    """
    if name == _TINY:
        config = _tiny_config()
        return FrameSpec(frames or _TINY_FRAMES, int(config["vision_cfg"]["image_size"]))
    if name in SMALL_NAMES:
        from models.backbones.small.small_files import SMALL_MODELS

        return SMALL_MODELS[name].frame_spec(frames)
    if name.startswith(OPEN_CLIP_PREFIX):
        from models.backbones.open_clip_loading import open_clip_frame_spec

        return open_clip_frame_spec(name, frames)
    if name.startswith(TRANSFORMERS_PREFIX):
        from models.backbones.transformers_backbone import transformers_frame_spec

        return transformers_frame_spec(name, frames)
    raise _unknown(name)


def import_library(name: str) -> None:
    """Import the library that :func:`load_backbone` needs for a name; raise BackboneUnavailable if it is unknown."""
    _loader(name)


def load_backbone(name: str, frames: int | None = None, *, text_only: bool = False) -> Backbone:
    """Load a backbone with its weights: frozen, in evaluation mode, on the CPU.

    Args:
        text_only: Whether to leave out the image tower of a frozen encoder, which can then embed texts only.

    Raises:
        BackboneUnavailable: The name is unknown, or the weights cannot be fetched; the message says which file to put
            where.
        BackboneUnsupported: The architecture of a tower is not supported.
    """
    return _loader(name)(frames, text_only)


def _loader(name: str) -> Callable[[int | None, bool], Backbone]:
    if name == _TINY:
        from models.backbones import open_clip_backbone  # noqa: F401

        return lambda frames, text_only: _load_tiny(frames or _TINY_FRAMES)
    if name in SMALL_NAMES:
        from models.backbones.small.small_backbone import load_small

        return lambda frames, text_only: load_small(name, frames)
    if name.startswith(OPEN_CLIP_PREFIX):
        from models.backbones.open_clip_loading import load_open_clip

        return lambda frames, text_only: load_open_clip(name, frames, text_only=text_only)
    if name.startswith(TRANSFORMERS_PREFIX):
        from models.backbones.transformers_backbone import load_transformers

        return lambda frames, text_only: load_transformers(name, frames, text_only=text_only)
    raise _unknown(name)


def weights_bytes(name: str) -> int:
    """Sum the sizes of a backbone's local files of weights; 0 if they are packaged, or come from a hub."""
    if name.startswith(OPEN_CLIP_PREFIX):
        weights = read_open_clip(name).weights
        return weights.stat().st_size if weights else 0
    folder = Path(name.removeprefix(TRANSFORMERS_PREFIX))
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder != Path(name) else 0


def _load_tiny(frames: int) -> Backbone:
    weights = Path(str(resources.files("models.backbones") / "tiny" / "weights.safetensors"))
    if not weights.exists():
        raise BackboneUnavailable(
            "backbone 'tiny': models/backbones/tiny/weights.safetensors is missing; restore it from the repository"
        )
    return tiny_backbone(frames, weights)


def tiny_backbone(frames: int = _TINY_FRAMES, weights: Path | None = None) -> Backbone:
    """Build the ``tiny`` backbone; without ``weights`` it is randomly initialized."""
    from open_clip.model import CLIP
    from safetensors.torch import load_file

    from models.backbones.open_clip_backbone import OpenClipBackbone, small_tokenizer

    config = _tiny_config()
    clip = CLIP(**config)
    if weights is not None:
        clip.load_state_dict(load_file(weights))
    text = config["text_cfg"]
    tokenizer = small_tokenizer(text["vocab_size"], text["context_length"])
    spec = FrameSpec(frames, config["vision_cfg"]["image_size"])
    return OpenClipBackbone(_TINY, clip, tokenizer, spec, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def _tiny_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads(
        (resources.files("models.backbones") / "tiny" / "config.json").read_text()
    )
    return config


def _unknown(name: str) -> BackboneUnavailable:
    return BackboneUnavailable(
        f"backbone {name!r} is unknown: {BACKBONE_NAMES}, or '{TRANSFORMERS_PREFIX}<hub name or folder>'"
    )
