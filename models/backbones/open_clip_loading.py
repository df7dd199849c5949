"""Every model of open_clip: plain CLIPs with open blocks, and all others as frozen encoders.

Frozen encoders run through ``encode_image`` and ``encode_text``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import open_clip
from open_clip.coca_model import CoCa
from open_clip.factory import convert_state_dict, load_checkpoint, load_state_dict
from open_clip.hf_configs import arch_dict
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP
from open_clip.pretrained import download_pretrained
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import PreprocessCfg, merge_preprocess_dict
from open_clip.transformer import TextTransformer
from torch import Tensor

from models.backbones import has_open_blocks
from models.backbones.backbone_description import FrameSpec
from models.backbones.frozen_encoder import FrozenEncoder, build_frame_spec, loading_errors, vocabulary_digest
from models.backbones.open_clip_backbone import OpenClipBackbone, clip_tokenizer, needs_quick_gelu
from models.backbones.open_clip_files import OPEN_CLIP_PREFIX, OpenClipFiles, read_open_clip, suggest
from models.backbones.transformers_backbone import read_config
from models.errors import BackboneUnavailable, BackboneUnsupported

_RESIZE_MODES = {"shortest": "crop", "longest": "pad", "squash": "squash"}
# Settings left out of the fingerprint: they affect only training, or name files whose content is in it.
_IRRELEVANT = {
    "patch_dropout",
    "timm_drop",
    "timm_drop_path",
    "timm_model_pretrained",
    "hf_model_pretrained",
    "hf_model_name",
    "hf_tokenizer_name",
    "tokenizer_mode",
    "tokenizer_kwargs",
    "output_tokens",
}
# Tensors of a text tower in files that store it as part of the model.
_TEXT_PARTS = ("text_projection", "positional_embedding", "token_embedding", "transformer.", "ln_final.")
_TEMPERATURE = ("logit_scale", "logit_bias")  # no vector depends on them


def open_clip_frame_spec(name: str, frames: int | None = None) -> FrameSpec:
    """Read how frames are sampled and resized; raise BackboneUnavailable, or BackboneUnsupported for other
    preprocessing.

    Plain CLIPs that open_clip lists see cropped frames whatever their tag states, as their fingerprints say.
    """
    files = read_open_clip(name)
    with _loading_errors(name):
        preprocessing = _preprocessing(files)
        size = files.config["vision_cfg"].get("image_size", 224)
        mode, interpolation = _RESIZE_MODES.get(preprocessing["resize_mode"]), preprocessing["interpolation"]
        if _is_listed_plain(files):
            mode, interpolation = "crop", "bicubic"
        if mode is None or interpolation not in ("bicubic", "bilinear") or preprocessing["fill_color"]:
            raise BackboneUnsupported(
                f"backbone {name!r}: its preprocessing {preprocessing} is not supported"
            )
        height, width = (size, size) if isinstance(size, int) else size
        spec = build_frame_spec(frames, (height, width), mode, interpolation)
        # Releases of earlier versions have fingerprints with this size.
        is_as_before = files.has_open_blocks and spec.size == (height, height, "crop", "bicubic")
        return spec._replace(size=height) if is_as_before else spec


def load_open_clip(
    name: str, frames: int | None = None, *, text_only: bool = False
) -> OpenClipBackbone | FrozenEncoder:
    """Load an open_clip model with its weights; raise BackboneUnavailable if it is unknown, its files cannot be fetched
    or do not fit, or BackboneUnsupported for its preprocessing or text tower.
    """
    files, spec = read_open_clip(name), open_clip_frame_spec(name, frames)
    if files.weights is None and not _tag_settings(files):
        tags = open_clip.list_pretrained_tags_by_model(files.model)
        raise BackboneUnavailable(
            f"backbone {name!r}: open_clip has no weights {files.source!r} of {files.model}"
            f"{suggest(files.source, tags)}, and there is no such file or folder; its tags: {', '.join(tags) or 'none'}"
        )
    with _loading_errors(name, uses_hub=files.weights is None):
        weights = files.weights or Path(download_pretrained(_tag_settings(files)))
        config, facts = _resolve(name, files)
        preprocessing = _preprocessing(files)
        mean, std = preprocessing["mean"], preprocessing["std"]
        if files.has_open_blocks:
            clip = build_model(config)
            with _fitting_errors(name):
                load_checkpoint(clip, str(weights))
            return OpenClipBackbone(name, clip, clip_tokenizer(clip.context_length), spec, mean, std)
        model = _load_model(name, config, weights, text_only=text_only)
        tokenizer = _load_tokenizer(files, config["text_cfg"])
        if isinstance(tokenizer, HFTokenizer):
            facts.append(vocabulary_digest(tokenizer.tokenizer))
        return FrozenEncoder(
            name,
            model,
            tokenizer,
            embed_images=partial(model.encode_image, normalize=False),
            embed_texts=model.encode_text,
            spec=spec,
            mean=mean,
            std=std,
            vocabulary=model.text.vocab_size,
            identity=[OPEN_CLIP_PREFIX, *facts],
            weights=[weights],
            end_of_text=_shorten_texts(model.text),
        )


def _shorten_texts(tower: Any) -> Callable[[Tensor], Tensor] | None:
    """Let a causal text tower run on texts cut after the pooled token, and return how to find it, ``[n]``; or None."""
    if (
        not isinstance(tower, TextTransformer)
        or tower.attn_mask is None
        or tower.cls_emb is not None
        or tower.pool_type not in ("argmax", "eos")
    ):
        return None

    def cut_mask(_: Any, inputs: tuple[Tensor], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        length = inputs[0].shape[1]  # open_clip expects texts of the full length here
        return inputs, {**options, "attn_mask": options["attn_mask"][:length, :length]}

    tower.transformer.register_forward_pre_hook(cut_mask, with_kwargs=True)
    if tower.pool_type == "argmax":
        return lambda ids: ids.argmax(dim=-1)
    return lambda ids: (ids == tower.eos_id).int().argmax(dim=-1)


def _loading_errors(name: str, *, uses_hub: bool = False) -> AbstractContextManager[None]:
    model = name.partition("/")[0]
    if has_open_blocks(name):
        advice = (
            f"put a checkpoint of {model.removeprefix(OPEN_CLIP_PREFIX)} in open_clip's format (.safetensors or .pt) "
            f"on this machine and name it: {model}/<path to the file>"
        )
    else:
        advice = (
            "put the files of the model's repository (open_clip_config.json, open_clip_model.safetensors, and the "
            "tokenizer's) into a folder, for a text tower from transformers also its config.json, and name the folder: "
            f"{model}/<path to the folder>"
        )
    return loading_errors(name, advice, uses_hub=uses_hub)


def _tag_settings(files: OpenClipFiles) -> dict[str, Any]:
    """Look up what open_clip knows about a tag of weights, or for a local file about the model's first tag."""
    tags = open_clip.list_pretrained_tags_by_model(files.model)
    tag = files.source if files.weights is None else next(iter(tags), "")
    settings: dict[str, Any] = open_clip.get_pretrained_cfg(files.model, tag)
    return settings


def _preprocessing(files: OpenClipFiles) -> dict[str, Any]:
    if _is_listed_plain(files):
        stated = _tag_settings(files) if files.weights is None else {}
    else:
        stated = files.preprocessing or _tag_settings(files)
    settings: dict[str, Any] = merge_preprocess_dict(PreprocessCfg(), stated)
    return settings


def _is_listed_plain(files: OpenClipFiles) -> bool:
    """Check for a plain CLIP in open_clip's list. Its preprocessing file is ignored: fingerprints stay the same."""
    return files.has_open_blocks and not files.is_described


def _resolve(name: str, files: OpenClipFiles) -> tuple[dict[str, Any], list[Any]]:
    """Complete a configuration with local files, and list facts that identify the towers wherever these are stored."""
    images, texts = dict(files.config["vision_cfg"]), dict(files.config["text_cfg"])
    images["timm_model_pretrained"] = texts["hf_model_pretrained"] = False
    config = {**files.config, "vision_cfg": images, "text_cfg": texts}
    if needs_quick_gelu(files.model, files.source):
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
    """Load the towers with their weights, for ``text_only`` without the image tower; raise BackboneUnavailable, which
    names the first weight that does not fit.
    """
    tensors: dict[str, Tensor] = load_state_dict(str(weights))  # safetensors are read on use
    # Weights with names of another project are converted together with the image tower.
    skips_images = text_only and any(key.startswith("visual.") for key in tensors)
    if skips_images:
        config = {**config, "vision_cfg": {"layers": 1, "width": 64, "image_size": 32, "patch_size": 32}}
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith("visual.")}
    model = build_model({**config, "custom_text": True})
    tensors = {
        f"text.{key}" if key.startswith(_TEXT_PARTS) else key: tensor
        for key, tensor in convert_state_dict(model, tensors).items()
    }
    if skips_images:
        del model.visual
    expected = model.state_dict()
    for key in (*_TEMPERATURE, "text.transformer.embeddings.position_ids"):
        tensors.pop(key, None)
        if key in expected:
            tensors[key] = expected[key]
    with _fitting_errors(name):
        model.load_state_dict(tensors)
    for tower in ("visual", "text_decoder") if text_only else ("text_decoder",):
        if hasattr(model, tower):
            delattr(model, tower)  # captions are not generated
    return model


@contextmanager
def _fitting_errors(name: str) -> Iterator[None]:
    """Name the first tensor that does not fit, of the many that torch lists."""
    try:
        yield
    except RuntimeError as error:
        problems = str(error).splitlines()[1:]
        if not problems:  # another error than of shapes
            raise
        raise BackboneUnavailable(
            f"backbone {name!r}: the weights are of another model: {problems[0].strip()[:200]}"
        ) from error


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
