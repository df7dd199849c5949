"""ViT and BERT through the transformers library: the backbone of bmu-moco (section 3.2) and, with DeiT, of ctp.

The name is ``transformers:<vision>+<text>``; each part is a model on the hub or a local folder in the library's format
(``config.json``, ``model.safetensors``, and the text model's tokenizer files). Weights are read from safetensors only,
and no code from a checkpoint is executed.

A frame's vector is its class token; a text's is the mean over its tokens, including [CLS] and [SEP] but not padding.
One linear layer each projects into the joint space (bmu-moco, equations 1 to 6); being linear, it can be applied after
averaging. The checkpoints contain these projections: ``visual_projection.weight`` and ``text_projection.weight``, both
``[dim, width]``.

bmu-moco does not specify the frames per video, the maximum text length and the projections' bias (none here); this
module chooses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoTokenizer, BertModel, DeiTModel, PreTrainedConfig, PreTrainedModel, ViTModel
from transformers.image_processing_base import ImageProcessingMixin
from transformers.utils import SAFE_WEIGHTS_NAME, logging
from transformers.utils.hub import cached_file

from models.backbones import TRANSFORMERS_PREFIX
from models.backbones.backbone_description import FrameSpec
from models.backbones.bert_text_tower import BertBackbone, BertTextTower, Towers
from models.backbones.bert_tokenizer import TEXT_LENGTH, BertTokenizer
from models.errors import BackboneUnavailable, BackboneUnsupported, ModelError


@contextmanager
def silent_library() -> Iterator[None]:
    """Silence the library's progress bars and warnings within this context."""
    library_logging: Any = logging
    verbosity = library_logging.get_verbosity()
    has_progress_bar = library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        library_logging.set_verbosity(verbosity)
        if has_progress_bar:
            library_logging.enable_progress_bar()


def read_config(name: str, source: str, classes: dict[str, type[PreTrainedModel]]) -> Any:
    """Read a model's configuration.

    Raises:
        BackboneUnsupported: The model's architecture is not one of ``classes``.
    """
    settings, _ = PreTrainedConfig.get_config_dict(source)
    model_type = settings.get("model_type")
    if model_type not in classes:
        raise BackboneUnsupported(
            f"backbone {name!r}: {source!r} is of type {model_type!r}; this tower must be {' or '.join(classes)}"
        )
    return cast(Any, classes[model_type].config_class).from_dict(settings)


def load_tower(
    name: str, source: str, classes: dict[str, type[PreTrainedModel]], key: str
) -> tuple[Any, Tensor | None]:
    """Load a tower without its heads.

    Args:
        classes: Supported architectures, by their type in ``config.json``.
        key: Name of a projection in the checkpoint.

    Returns:
        The tower, and the projection; None if the checkpoint has none.

    Raises:
        BackboneUnavailable: The weights do not fit the configuration.
        BackboneUnsupported: The model has another architecture.
    """
    config = read_config(name, source, classes)
    model, report = cast(Any, classes[config.model_type]).from_pretrained(
        source,
        config=config,
        add_pooling_layer=False,
        attn_implementation="sdpa",  # a checkpoint could otherwise name an implementation that is code on the hub
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise BackboneUnavailable(
            f"backbone {name!r}: the weights of {source!r} do not fit its config.json: {len(missing)} are missing, "
            f"the first is {missing[0]}"
        )
    if key not in report["unexpected_keys"]:
        return model, None
    with safe_open(cached_file(source, SAFE_WEIGHTS_NAME), framework="pt") as file:
        return model, file.get_tensor(key).float()


_VISION: dict[str, type[PreTrainedModel]] = {"vit": ViTModel, "deit": DeiTModel}
_TEXT: dict[str, type[PreTrainedModel]] = {"bert": BertModel}
_DEFAULT_FRAMES = 8
_PREPROCESSOR = "preprocessor_config.json"
# Mean and standard deviation where a folder names none: the library's default.
_DEFAULT_NORMALIZATION = (0.5, 0.5, 0.5)


class TransformersBackbone(BertBackbone):
    """A ViT and a BERT with closed blocks."""

    @property
    def visual_blocks(self) -> list[Any]:
        return [_ClosedBlock(self, layer) for layer in self.clip.visual.vit.layers]

    def embed_frames(self, frames: Tensor) -> Tensor:
        tokens: Tensor = self.clip.visual.vit.embeddings(self.pixels(frames))
        return tokens.view(*frames.shape[:2], *tokens.shape[1:])

    def _identity(self) -> list[Any]:
        towers = [self.clip.visual.vit.config, self.clip.text.bert.config]
        shapes = [[c.model_type, c.num_attention_heads, c.hidden_act, c.layer_norm_eps] for c in towers]
        return [TRANSFORMERS_PREFIX, self.spec.size, shapes, TEXT_LENGTH, self._tokenizer.digest]


class _ImageTower(nn.Module):
    def __init__(self, vit: Any, projection: Tensor) -> None:
        super().__init__()
        self.vit: Any = vit
        self.proj = nn.Parameter(projection)  # [width, dim]

    @property
    def ln_post(self) -> nn.Module:
        return cast(nn.Module, self.vit.layernorm)


class _ClosedBlock:
    """A block that can run but keeps its members inaccessible."""

    def __init__(self, backbone: TransformersBackbone, layer: nn.Module) -> None:
        self._backbone = backbone
        self._layer = layer

    def __call__(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self._layer(tokens))

    def __getattr__(self, name: str) -> NoReturn:
        raise self._backbone.closed_blocks_error()


def transformers_frame_spec(name: str, frames: int | None = None) -> FrameSpec:
    """Read the frames per video and frame size from the vision model's ``config.json``.

    Raises:
        BackboneUnavailable: The model or folder does not exist; the message names the missing files.
        BackboneUnsupported: The model is not a ViT or DeiT for square images.
    """
    with _loading_errors(name):
        config = read_config(name, _split(name)[0], _VISION)
        if not isinstance(config.image_size, int):
            raise BackboneUnsupported(f"backbone {name!r}: images of {config.image_size} are not square")
        return FrameSpec(frames or _DEFAULT_FRAMES, config.image_size)


def load_transformers(name: str, frames: int | None = None) -> TransformersBackbone:
    """Load a ViT (or DeiT) and a BERT with their weights.

    Raises:
        BackboneUnavailable: A model or folder does not exist, or its weights do not fit; the message names the missing
            files.
        BackboneUnsupported: A model has another architecture.
    """
    spec = transformers_frame_spec(name, frames)
    vision, text = _split(name)
    with _loading_errors(name):
        vit, visual_projection = load_tower(name, vision, _VISION, "visual_projection.weight")
        bert, text_projection = load_tower(name, text, _TEXT, "text_projection.weight")
        words: Any = AutoTokenizer.from_pretrained(text, trust_remote_code=False)
        length = min(TEXT_LENGTH, bert.config.max_position_embeddings)
        tokenizer = BertTokenizer(text, words.backend_tokenizer, length)
        mean, std = _read_normalization(vision)
    if tokenizer.size > bert.config.vocab_size:
        raise BackboneUnavailable(
            f"backbone {name!r}: the tokenizer of {text!r} has {tokenizer.size} tokens, but the weights are for "
            f"{bert.config.vocab_size}: put the tokenizer files of these weights into the folder"
        )
    widths = vit.config.hidden_size, bert.config.hidden_size
    projections = _projections(name, widths, visual_projection, text_projection)
    towers = Towers(_ImageTower(vit, projections[0]), BertTextTower(bert, projections[1]))
    return TransformersBackbone(name, towers, tokenizer, spec, mean, std)


def _split(name: str) -> tuple[str, str]:
    vision, _, text = name.removeprefix(TRANSFORMERS_PREFIX).partition("+")
    if not vision or not text or "+" in text:
        raise BackboneUnavailable(
            f"backbone {name!r} does not name two towers: use '{TRANSFORMERS_PREFIX}<vision model or folder>+"
            f"<text model or folder>', for example '{TRANSFORMERS_PREFIX}google/vit-base-patch16-384+google-bert/"
            "bert-base-uncased'"
        )
    return vision, text


@contextmanager
def _loading_errors(name: str) -> Iterator[None]:
    """Turn loading errors into :class:`BackboneUnavailable`, and silence the library's own reports."""
    try:
        with silent_library():
            yield
    except ModelError:
        raise
    except Exception as error:  # the library, the hub client and safetensors raise unrelated types
        raise BackboneUnavailable(
            f"backbone {name!r} could not be loaded ({type(error).__name__}: {error}). Without a connection to the "
            "model hub, give two folders in the format of the transformers library, each with config.json and "
            "model.safetensors, the text folder also with its tokenizer files: "
            f"{TRANSFORMERS_PREFIX}<path to the vision folder>+<path to the text folder>"
        ) from error


def _projections(
    name: str, widths: tuple[int, int], visual: Tensor | None, text: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Turn the projections of images and texts, which checkpoints store as ``[dim, width]``, to ``[width, dim]``."""
    if visual is not None and text is not None:
        dim = len(visual)
        if (visual.shape, text.shape) == ((dim, widths[0]), (dim, widths[1])):
            return visual.T.contiguous(), text.T.contiguous()
    shapes = [None if tensor is None else list(tensor.shape) for tensor in (visual, text)]
    raise BackboneUnavailable(
        f"backbone {name!r}: visual_projection.weight has shape {shapes[0]} and text_projection.weight {shapes[1]}; "
        f"the shapes must be [dim, {widths[0]}] and [dim, {widths[1]}]"
    )


def _read_normalization(source: str) -> tuple[Sequence[float], Sequence[float]]:
    if Path(source).is_dir() and not (Path(source) / _PREPROCESSOR).exists():
        return _DEFAULT_NORMALIZATION, _DEFAULT_NORMALIZATION
    settings, _ = ImageProcessingMixin.get_image_processor_dict(source)
    return (
        settings.get("image_mean", _DEFAULT_NORMALIZATION),
        settings.get("image_std", _DEFAULT_NORMALIZATION),
    )
