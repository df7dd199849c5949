"""Every model of open_clip as a frozen encoder, through ``encode_image`` and ``encode_text``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import open_clip
import torch
from open_clip.coca_model import CoCa
from open_clip.factory import convert_state_dict, load_state_dict
from open_clip.hf_configs import arch_dict
from open_clip.model import (
    CLIP,
    CLIPTextCfg,
    CLIPVisionCfg,
    CustomTextCLIP,
    convert_to_custom_text_state_dict,
)
from open_clip.pretrained import download_pretrained
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import PreprocessCfg, merge_preprocess_dict
from torch import Tensor, nn

from models.backbones.backbone_description import FrameSpec
from models.backbones.frozen_encoder import FrozenEncoder, file_digests, require_fit, vocabulary_digest
from models.backbones.open_clip_backbone import DEFAULT_FRAMES, clip_tokenizer
from models.backbones.open_clip_files import OPEN_CLIP_PREFIX, OpenClipFiles, read_open_clip, suggest
from models.backbones.transformers_backbone import read_config
from models.errors import BackboneUnavailable, BackboneUnsupported, ModelError

_RESIZE_MODES = {"shortest": "crop", "longest": "pad", "squash": "squash"}
# Settings that identify no encoder: of training, and what is identified by its content.
_IRRELEVANT = {
    *(
        "patch_dropout",
        "timm_drop",
        "timm_drop_path",
        "timm_model_pretrained",
        "hf_model_pretrained",
        "hf_model_name",
    ),
    *("hf_tokenizer_name", "tokenizer_mode", "tokenizer_kwargs", "output_tokens"),
}
_TEMPERATURE = ("logit_scale", "logit_bias")  # no vector depends on them


class FrozenOpenClip(FrozenEncoder):
    """A model of open_clip with closed towers.

    A causal text tower that reads its vector at the end of the text runs without the padding, which takes a fifth of
    the time for a query and gives the same vector up to rounding.
    """

    @property
    def _tower(self) -> Any:
        return getattr(self.clip, "text", self.clip)

    @property
    def _pooling(self) -> str | None:
        """How a causal text tower finds the end of the text (``argmax`` or ``eos``); None for other towers."""
        tower = self._tower
        pooling = getattr(tower, "text_pool_type", getattr(tower, "pool_type", ""))
        is_causal = getattr(tower, "attn_mask", None) is not None and getattr(tower, "cls_emb", None) is None
        return pooling if is_causal and pooling in ("argmax", "eos") else None

    def end_of_text(self, ids: Tensor) -> Tensor:
        if self._pooling is None:
            return super().end_of_text(ids)
        tower = self._tower
        is_end = torch.eq(ids, getattr(tower, "text_eos_id", getattr(tower, "eos_id", -1)))
        return (ids if self._pooling == "argmax" else is_end.int()).argmax(dim=-1)

    def _embed_images(self, pixels: Tensor) -> Tensor:
        vectors: Tensor = self.clip.encode_image(pixels, normalize=False)
        return vectors

    def _embed_texts(self, ids: Tensor) -> Tensor:
        if self._pooling is None:
            vectors: Tensor = self.clip.encode_text(ids)
            return vectors
        tower, end = self._tower, self.end_of_text(ids)
        length = int(end.max()) + 1
        words = tower.token_embedding(ids[:, :length]) + tower.positional_embedding[:length]
        states = tower.transformer(words, attn_mask=tower.attn_mask[:length, :length])
        pooled = tower.ln_final(states[torch.arange(len(ids), device=ids.device), end])
        projection = tower.text_projection
        if projection is None:
            return cast(Tensor, pooled)
        return cast(Tensor, projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection)


def frozen_frame_spec(name: str, frames: int | None = None) -> FrameSpec:
    """Read how frames are sampled and resized from a model's configuration.

    Raises:
        BackboneUnavailable: See :func:`~models.backbones.open_clip_files.read_open_clip`.
        BackboneUnsupported: The preprocessing is not supported.
    """
    files = read_open_clip(name)
    preprocessing = _preprocessing(files)
    size = preprocessing["size"]
    height, width = (size, size) if isinstance(size, int) else size
    mode, interpolation = _RESIZE_MODES.get(preprocessing["resize_mode"]), preprocessing["interpolation"]
    if mode is None or interpolation not in ("bicubic", "bilinear") or preprocessing["fill_color"]:
        raise BackboneUnsupported(f"backbone {name!r}: its preprocessing {preprocessing} is not supported")
    is_default = (height, mode, interpolation) == (width, "crop", "bicubic")
    return FrameSpec(frames or DEFAULT_FRAMES, height if is_default else (height, width, mode, interpolation))


def load_frozen_open_clip(name: str, frames: int | None = None, *, text_only: bool = False) -> FrozenOpenClip:
    """Load an open_clip model with its weights.

    Raises:
        BackboneUnavailable: The model is unknown, its files cannot be fetched, or the weights do not fit it.
        BackboneUnsupported: The preprocessing or the text tower is not supported.
    """
    files, spec = read_open_clip(name), frozen_frame_spec(name, frames)
    with _loading_errors(name, files.model):
        weights = files.weights or _download(name, files)
        config, facts = _resolve(name, files)
        model = _load_model(name, config, weights, text_only=text_only)
        tokenizer = _load_tokenizer(files, config["text_cfg"])
        if isinstance(tokenizer, HFTokenizer):
            facts.append(vocabulary_digest(tokenizer.tokenizer))
        preprocessing = _preprocessing(files)
        return FrozenOpenClip(
            name,
            model,
            tokenizer,
            spec=spec,
            mean=preprocessing["mean"],
            std=preprocessing["std"],
            vocabulary=getattr(model, "text", model).vocab_size,
            identity=[OPEN_CLIP_PREFIX, *facts, *file_digests([weights])],
        )


@contextmanager
def _loading_errors(name: str, model: str) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # open_clip, the hub client and torch raise unrelated types
        raise BackboneUnavailable(
            f"backbone {name!r} could not be loaded ({type(error).__name__}: {error}). Without a connection to the "
            "model hub, put the files of the model's repository (open_clip_config.json, open_clip_model.safetensors, "
            "and the tokenizer's) into a folder, for a text tower from transformers also its config.json, and name "
            f"the folder: {OPEN_CLIP_PREFIX}{model}/<path to the folder>"
        ) from error


def _tag_settings(files: OpenClipFiles) -> dict[str, Any]:
    """Look up what open_clip knows about a tag of weights, or for a local file about the model's first tag."""
    tags = open_clip.list_pretrained_tags_by_model(files.model)
    tag = files.source if files.weights is None else next(iter(tags), "")
    settings: dict[str, Any] = open_clip.get_pretrained_cfg(files.model, tag)
    return settings


def _preprocessing(files: OpenClipFiles) -> dict[str, Any]:
    stated = files.preprocessing or _tag_settings(files)
    settings: dict[str, Any] = merge_preprocess_dict(PreprocessCfg(), stated)
    return settings | {"size": files.config["vision_cfg"].get("image_size", 224)}


def _download(name: str, files: OpenClipFiles) -> Path:
    if not (settings := _tag_settings(files)):
        tags = open_clip.list_pretrained_tags_by_model(files.model)
        raise BackboneUnavailable(
            f"backbone {name!r}: open_clip has no weights {files.source!r} of {files.model}"
            f"{suggest(files.source, tags)}, and there is no such file or folder; its tags: {', '.join(tags) or 'none'}"
        )
    return Path(download_pretrained(settings))


def _resolve(name: str, files: OpenClipFiles) -> tuple[dict[str, Any], list[Any]]:
    """Complete a configuration with local files, and list facts that identify the towers wherever these are stored."""
    images, texts = dict(files.config["vision_cfg"]), dict(files.config["text_cfg"])
    images["timm_model_pretrained"] = texts["hf_model_pretrained"] = False
    quick = bool(files.weights is None and _tag_settings(files).get("quick_gelu"))
    config = {**files.config, "vision_cfg": images, "text_cfg": texts}
    if quick:
        config["quick_gelu"] = True
    tower: dict[str, Any] = {}  # configuration of a text tower from transformers
    if hub_name := texts.get("hf_model_name"):
        is_local = files.folder is not None and (files.folder / "config.json").is_file()
        texts["hf_model_name"] = str(files.folder) if is_local else hub_name
        _, tower = read_config(name, texts["hf_model_name"], arch_dict)
    stated = [
        {
            key: value
            for key, value in settings.items()
            if key not in _IRRELEVANT and value != defaults.get(key)
        }
        for settings, defaults in ((images, asdict(CLIPVisionCfg())), (texts, asdict(CLIPTextCfg())))
    ]
    return config, [*stated, tower, config.get("quick_gelu", False)]


def build_model(config: dict[str, Any]) -> Any:
    """Build the towers with random weights."""
    settings = dict(config)
    is_custom = settings.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
    kind = CoCa if "multimodal_cfg" in settings else CustomTextCLIP
    return (kind if is_custom else CLIP)(**settings)


def _load_model(name: str, config: dict[str, Any], weights: Path, *, text_only: bool) -> Any:
    """Load the towers with their weights, for ``text_only`` without the image tower."""
    tensors: dict[str, Tensor] = load_state_dict(str(weights))
    # Weights with names of another project are converted together with the image tower.
    skips_images = text_only and any(key.startswith("visual.") for key in tensors)
    if skips_images:
        side = 32
        config = {**config, "vision_cfg": {"layers": 1, "width": 64, "image_size": side, "patch_size": side}}
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith("visual.")}
    model = build_model(config)
    tensors = convert_state_dict(model, tensors)
    if "positional_embedding" in tensors and hasattr(model, "text"):
        tensors = convert_to_custom_text_state_dict(tensors)
    if skips_images:
        del model.visual
    expected = {key: tensor for key, tensor in model.state_dict().items() if key not in _TEMPERATURE}
    unused = {*_TEMPERATURE, "text.transformer.embeddings.position_ids"} - expected.keys()
    tensors = {key: tensor for key, tensor in tensors.items() if key not in unused}
    require_fit(name, expected, tensors)
    model.load_state_dict(tensors, strict=False)
    for tower in ("visual", "text_decoder"):
        if hasattr(model, tower) and (text_only or tower == "text_decoder"):
            delattr(model, tower)  # captions are not generated
    return model


def _load_tokenizer(files: OpenClipFiles, config: dict[str, Any]) -> Any:
    """Build the model's tokenizer; its files next to the weights precede those of the hub."""
    length, kwargs = config.get("context_length", 77), config.get("tokenizer_kwargs") or {}
    if not config.get("hf_tokenizer_name"):
        return clip_tokenizer(length, **kwargs)
    is_local = files.folder is not None and any(files.folder.glob("tokenizer*"))
    return HFTokenizer(
        str(files.folder) if is_local else config["hf_tokenizer_name"],
        context_length=length,
        tokenizer_mode=config.get("tokenizer_mode"),
        **{**kwargs, "trust_remote_code": False},
    )
