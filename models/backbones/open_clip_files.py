"""The files that the name of an open_clip backbone refers to. This module imports neither torch nor open_clip.

A name is ``open_clip:<model>/<source>``. The source is a tag of pre-trained weights, a file of weights, or a folder
with the files of a model's repository on the hub: ``open_clip_config.json``, the weights, those of the tokenizer, and
``config.json`` of a text tower from transformers. Such files next to a file of weights are used, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import BackboneUnavailable

OPEN_CLIP_PREFIX = "open_clip:"  # of the names of open_clip backbones
CONFIG_FILE = "open_clip_config.json"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")  # best first
BACKBONE_NAMES = (  # what error messages suggest
    f"use 'small', 'lite2', 'tiny', or '{OPEN_CLIP_PREFIX}<model>/<pretrained tag, local file or folder>', for example "
    f"'{OPEN_CLIP_PREFIX}ViT-B-32/openai'"
)
# All that configurations of the original CLIP's towers state: a ViT with a class token, and a causal text tower pooled
# at the end of the text.
_PLAIN_IMAGES = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "ls_init_value"}
_PLAIN_TEXTS = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "ls_init_value"}


class OpenClipFiles(NamedTuple):
    """A model's configuration and files."""

    model: str
    source: str  # tag, or path of a file or folder
    config: dict[str, Any]  # configuration of the towers
    preprocessing: dict[str, Any]  # preprocessing that CONFIG_FILE states; empty without that file
    weights: Path | None  # local file of weights; None for a tag
    is_described: bool  # whether the architecture is that of CONFIG_FILE, not the one that open_clip has

    @property
    def folder(self) -> Path | None:
        """Local folder of the files; None for a tag."""
        return self.weights and self.weights.parent

    @property
    def has_open_blocks(self) -> bool:
        """Whether both towers are plain CLIP transformers, so that adapters can work inside them."""
        images, texts = self.config["vision_cfg"], self.config["text_cfg"]
        is_plain = images.keys() <= _PLAIN_IMAGES and texts.keys() <= _PLAIN_TEXTS
        return is_plain and isinstance(images.get("layers", 12), int) and "multimodal_cfg" not in self.config


def read_open_clip(name: str) -> OpenClipFiles:
    """Read the configuration that a backbone's name refers to; raise BackboneUnavailable if the name has no weights,
    open_clip has no such model, or a file is missing or damaged.
    """
    model, _, source = name.removeprefix(OPEN_CLIP_PREFIX).partition("/")
    if not source:
        raise BackboneUnavailable(f"backbone {name!r} names no weights: {BACKBONE_NAMES}")
    configs = {file.stem: file for file in _package_folder().glob("*.json")}
    file = path = Path(source)
    stated: Any = {}
    try:
        weights = _find_weights(name, path) if path.is_dir() else path if path.is_file() else None
        is_described = False
        if weights and (file := weights.with_name(CONFIG_FILE)).is_file():
            is_described = path.is_dir() or model not in configs
            stated = json.loads(file.read_text(encoding="utf-8"))
        if not is_described and model not in configs:
            raise BackboneUnavailable(
                f"backbone {name!r}: open_clip has no model {model!r}{suggest(model, list(configs))}; `python -c "
                "'import open_clip; print(open_clip.list_models())'` lists its models"
            )
        config = stated["model_cfg"] if is_described else json.loads(configs[model].read_text("utf-8"))
        preprocessing = stated.get("preprocess_cfg") or {}
        if not all(
            isinstance(part, dict) for part in (config["vision_cfg"], config["text_cfg"], preprocessing)
        ):
            raise TypeError("vision_cfg, text_cfg and preprocess_cfg must be objects")
    except BackboneUnavailable:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BackboneUnavailable(
            f"backbone {name!r}: {file} is not a configuration of open_clip ({type(error).__name__}: {error})"
        ) from error
    return OpenClipFiles(model, source, config, preprocessing, weights, is_described)


def suggest(name: str, names: Sequence[str]) -> str:
    """Name the names that are most similar to an unknown one, for an error message."""
    spelled = {listed.lower(): listed for listed in names}
    closest = get_close_matches(name.lower(), spelled, n=3, cutoff=0.5)
    return f" (did you mean {', '.join(spelled[match] for match in closest)}?)" if closest else ""


def _find_weights(name: str, folder: Path) -> Path:
    """Choose the file of weights in a folder: open_clip's before others, and safetensors before pickles."""
    files = sorted(
        (not path.name.startswith("open_clip"), _WEIGHT_SUFFIXES.index(path.suffix), path)
        for path in folder.iterdir()
        if path.suffix in _WEIGHT_SUFFIXES
    )
    if not files:
        raise BackboneUnavailable(
            f"backbone {name!r}: the folder {folder} has no weights: put open_clip_model.safetensors there"
        )
    return files[0][-1]


def _package_folder() -> Path:
    spec = find_spec("open_clip")
    if spec is None or not spec.submodule_search_locations:
        raise BackboneUnavailable("backbones of open_clip need the Python package open_clip_torch")
    return Path(spec.submodule_search_locations[0]) / "model_configs"
