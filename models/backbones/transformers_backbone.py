"""Dual encoders of the transformers library as frozen encoders, and loading of its models.

The name is ``transformers:<source>``: a model on the hub, or a local folder in the library's format (``config.json``,
``preprocessor_config.json``, ``model.safetensors``, and the tokenizer's files). Weights are read from safetensors only,
and no code from a checkpoint is executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoImageProcessor, AutoTokenizer, PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging
from transformers.utils.hub import cached_file

from models.backbones import TRANSFORMERS_PREFIX
from models.backbones.backbone_description import FrameSpec
from models.backbones.frozen_encoder import FrozenEncoder, build_frame_spec, loading_errors, vocabulary_digest
from models.errors import BackboneUnavailable, BackboneUnsupported

_library_logging: Any = logging
_library_logging.set_verbosity_error()  # what it warns about becomes an error here, or is meant to be so
_library_logging.disable_progress_bar()


def read_config(name: str, source: str, types: Container[str]) -> tuple[Any, dict[str, Any]]:
    """Read a model's configuration, as an object and as what it states apart from its origin; raise BackboneUnsupported
    if its type is not one of ``types``, or unknown to the library.
    """
    settings, _ = PreTrainedConfig.get_config_dict(source)
    model_type = str(settings.get("model_type"))
    if model_type not in types or model_type not in CONFIG_MAPPING:
        raise BackboneUnsupported(
            f"backbone {name!r}: {source!r} is of type {model_type!r}, which is not supported"
        )
    stated = {k: v for k, v in settings.items() if k != "transformers_version" and not k.startswith("_")}
    return CONFIG_MAPPING[model_type].from_dict(settings), stated


def load_model(name: str, source: str, kind: Any, config: Any = None, **options: Any) -> Any:
    """Load a model of a class in single precision, without the parts that the class lacks; raise BackboneUnavailable,
    which names the first weight that does not fit.
    """
    model, report = kind.from_pretrained(
        source,
        config=config,
        # A checkpoint could otherwise name an implementation that is code on the hub.
        attn_implementation="sdpa" if kind._supports_sdpa else "eager",
        dtype=torch.float32,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **options,
    )
    wrong = [f"{key} is missing" for key in report["missing_keys"]] + [
        f"{key} has the shape {list(stored)} in the file, but {list(expected)} in config.json"
        for key, stored, expected in report["mismatched_keys"]
    ]
    if wrong:
        raise BackboneUnavailable(
            f"backbone {name!r}: the weights of {source!r} are of another model: {min(wrong)}"
        )
    return model


_INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
_IMAGE_PARTS = ("vision_model", "visual_projection", "vision_projection")


def transformers_frame_spec(name: str, frames: int | None = None) -> FrameSpec:
    """Read from a configuration how frames are sampled and resized; errors are those of :func:`load_transformers`."""
    with _loading_errors(name):
        return _read_preprocessing(name, frames).spec


def load_transformers(name: str, frames: int | None = None, *, text_only: bool = False) -> FrozenEncoder:
    """Load a dual encoder with its weights; raise BackboneUnavailable, which names missing files, or
    BackboneUnsupported if it is no dual encoder, or for its preprocessing.
    """
    source = name.removeprefix(TRANSFORMERS_PREFIX)
    with _loading_errors(name):
        config, stated = read_config(name, source, CONFIG_MAPPING)
        kind: Any = MODEL_MAPPING.get(type(config), None)
        if not (hasattr(kind, "get_text_features") and hasattr(kind, "get_image_features")):
            raise BackboneUnsupported(
                f"backbone {name!r}: {source!r} is of type {config.model_type!r}, which is no dual encoder of images "
                f"and texts: use one such as {TRANSFORMERS_PREFIX}google/siglip2-base-patch16-224"
            )
        spec, (height, width), mean, std = _read_preprocessing(name, frames)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, padding_side="right")
        tokenize, padding = _text_reader(tokenizer, config)
        if text_only:
            config.vision_config.num_hidden_layers = 0  # their weights are not read
        model = load_model(name, source, kind, config)
        for part in _IMAGE_PARTS if text_only else ():
            if hasattr(model, part):
                setattr(model, part, nn.Identity())
        top, left = (spec.shape[0] - height) // 2, (spec.shape[1] - width) // 2

        def embed_images(pixels: Tensor) -> Tensor:
            seen = pixels[..., top : top + height, left : left + width]
            return _vectors(model.get_image_features(pixel_values=seen))

        def embed_texts(ids: Tensor) -> Tensor:
            mask = {} if padding is None else {"attention_mask": (ids != padding).long()}
            return _vectors(model.get_text_features(input_ids=ids, **mask))

        return FrozenEncoder(
            name,
            model,
            tokenize,
            embed_images=embed_images,
            embed_texts=embed_texts,
            spec=spec,
            mean=mean,
            std=std,
            vocabulary=config.get_text_config().vocab_size,
            identity=[TRANSFORMERS_PREFIX, stated, vocabulary_digest(tokenizer), height, width],
            weights=_weights(source),
            end_of_text=_text_end(config, padding),
            padding=padding or 0,
        )


def _vectors(output: Any) -> Tensor:
    return cast(Tensor, output if isinstance(output, Tensor) else output.pooler_output)


def _text_reader(tokenizer: Any, config: Any) -> tuple[Callable[[list[str]], Tensor], int | None]:
    """Build a function from texts to token IDs; the padding is None if it is not masked."""
    texts = config.get_text_config()
    padding = tokenizer.pad_token_id
    # SigLIP reads its padding, and CLIP is causal and may pad with the end of the text.
    is_masked = not config.model_type.startswith("siglip") and config.model_type != "clip"
    is_offset = any(family in texts.model_type for family in ("roberta", "altclip"))
    length = min(
        tokenizer.model_max_length, texts.max_position_embeddings - (padding + 1 if is_offset else 0)
    )

    def tokenize(batch: list[str]) -> Tensor:
        rows = tokenizer(
            batch,
            padding="longest" if is_masked else "max_length",
            truncation=True,
            max_length=length,
            return_tensors="pt",
        )
        return cast(Tensor, rows.input_ids)

    return tokenize, padding if is_masked else None


def _text_end(config: Any, padding: int | None) -> Callable[[Tensor], Tensor] | None:
    """Build a function from token IDs to the last positions that a text tower reads; None if it reads all."""
    if padding is not None:
        return lambda ids: (ids != padding).sum(dim=-1) - 1
    if config.model_type != "clip":
        return None
    end = config.get_text_config().eos_token_id
    # As the model does: configurations of old files name a wrong token.
    return lambda ids: (ids if end == 2 else (ids == end).int()).argmax(dim=-1)


class _Preprocessing(NamedTuple):
    spec: FrameSpec
    crop: tuple[int, int]  # height and width of the center that the image tower sees of a frame
    mean: list[float]
    std: list[float]


def _read_preprocessing(name: str, frames: int | None) -> _Preprocessing:
    """Read how a processor resizes, crops and normalizes pictures; raise BackboneUnsupported without a fixed size."""
    loader: Any = AutoImageProcessor
    processor = loader.from_pretrained(name.removeprefix(TRANSFORMERS_PREFIX), trust_remote_code=False)
    size, is_cropped = dict(processor.size or {}), getattr(processor, "do_center_crop", False)
    if size.keys() == {"height", "width"}:
        shape, mode = (size["height"], size["width"]), "squash"
    elif size.keys() == {"shortest_edge"} and is_cropped:
        shape, mode = (size["shortest_edge"],) * 2, "crop"
    else:
        raise BackboneUnsupported(
            f"backbone {name!r}: its processor does not make frames of a fixed size ({size}): use, for example, a "
            "SigLIP 2 model whose name ends with a size"
        )
    crop = (processor.crop_size["height"], processor.crop_size["width"]) if is_cropped else shape
    if not (0 < crop[0] <= shape[0] and 0 < crop[1] <= shape[1]):
        raise BackboneUnsupported(f"backbone {name!r}: its processor cuts {crop} pixels out of {shape}")
    spec = build_frame_spec(frames, shape, mode, _INTERPOLATIONS[int(processor.resample)])
    scale = 255 * processor.rescale_factor if processor.do_rescale else 255.0
    offset = 1.0 if getattr(processor, "rescale_offset", False) else 0.0
    is_normalized = processor.do_normalize
    means = processor.image_mean if is_normalized else [0.0] * 3
    stds = processor.image_std if is_normalized else [1.0] * 3
    return _Preprocessing(
        spec, crop, [(value + offset) / scale for value in means], [value / scale for value in stds]
    )


def _weights(source: str) -> list[Path]:
    """Locate the files of weights."""
    find: Any = cached_file
    # As the library does, prefer a single file.
    whole = find(source, SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False)
    if whole is not None:
        return [Path(whole)]
    index = find(source, SAFE_WEIGHTS_INDEX_NAME)
    shards = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))
    return [Path(find(source, shard)) for shard in shards]


def _loading_errors(name: str) -> AbstractContextManager[None]:
    advice = (
        "give a folder in the format of the transformers library, with config.json, preprocessor_config.json, "
        f"model.safetensors and the tokenizer's files: {TRANSFORMERS_PREFIX}<path to the folder>"
    )
    is_local = Path(name.removeprefix(TRANSFORMERS_PREFIX)).exists()
    return loading_errors(name, advice, uses_hub=not is_local)
