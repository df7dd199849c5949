"""ViT and BERT through the transformers library: the backbone of bmu-moco (section 3.2) and, with DeiT, of ctp.

Named ``transformers:<vision>+<text>``; each is a model on the hub or a local folder in the library's format
(``config.json``, ``model.safetensors``, for the text also its tokenizer files). Weights are read from safetensors
only, and no code of a checkpoint is run.

A frame's vector is its class token, a text's the mean over its tokens, [CLS] and [SEP] among them and padding left
out; one linear layer each projects into the joint space (bmu-moco, equations 1 to 6). Being linear, it comes after
the mean. Towers that were pre-trained apart have no such layers: they start from fixed random numbers, and before
training the two sides know nothing of each other. A checkpoint may bring its own, ``visual_projection.weight`` and
``text_projection.weight``, both ``[dim, width]``.

What bmu-moco leaves open and is chosen here: frames per video, d, the longest text, no bias in the projections.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoTokenizer, BertModel, DeiTModel, PreTrainedConfig, PreTrainedModel, ViTModel
from transformers.image_processing_base import ImageProcessingMixin
from transformers.utils import SAFE_WEIGHTS_NAME, logging
from transformers.utils.hub import cached_file

from models.backbones.backbone import Backbone, FrameSpec
from models.errors import BackboneUnavailable, BackboneUnsupported, ModelError

__all__ = ["TransformersBackbone", "load_transformers", "transformers_frame_spec"]

_PREFIX = "transformers:"
_VISION: dict[str, type[PreTrainedModel]] = {"vit": ViTModel, "deit": DeiTModel}
_TEXT: dict[str, type[PreTrainedModel]] = {"bert": BertModel}
_DEFAULT_FRAMES = 8
_DIM = 256  # that of ctp
_TEXT_LENGTH = 77  # tokens, as many as CLIP reads
_SEED = 0  # of fresh projections
_LOGIT_SCALE = math.log(1 / 0.07)  # bmu-moco, section 4.1; ctp, section 5.1
_PREPROCESSOR = "preprocessor_config.json"
_PADDING = 0  # id of [PAD], as in every vocabulary of BERT's
_HALF = (0.5, 0.5, 0.5)  # mean and deviation where a folder has none: the library's own for these models


class TransformersBackbone(Backbone):
    """A ViT and a BERT, whose blocks run as they are.

    Args:
        tokenizer: of the text tower.
        name, clip, spec, mean, std: as of :class:`~models.backbones.backbone.Backbone`.
    """

    has_open_blocks = False

    def __init__(
        self,
        name: str,
        clip: _Towers,
        tokenizer: _Tokenizer,
        spec: FrameSpec,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(name, clip, tokenizer, spec, mean, std)
        self.text = clip.text

    @property
    def dim(self) -> int:
        return int(self.clip.visual.proj.shape[1])

    @property
    def token_embedding(self) -> nn.Embedding:
        return cast(nn.Embedding, self.text.bert.get_input_embeddings())

    @property
    def vocabulary(self) -> int:
        return int(self.text.bert.config.vocab_size)

    @property
    def visual_blocks(self) -> list[Any]:
        return [_Block(self, layer) for layer in self.clip.visual.vit.layers]

    def embed_frames(self, frames: Tensor) -> Tensor:
        tokens: Tensor = self.clip.visual.vit.embeddings(self.pixels(frames))
        return tokens.view(*frames.shape[:2], *tokens.shape[1:])

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        ids: Tensor = self._tokenizer(texts)
        return ids

    def end_of_text(self, ids: Tensor) -> Tensor:
        """Position of [SEP], the last token that is no padding, ``[n]``."""
        return _places(ids).masked_fill(ids == _PADDING, 0).amax(dim=-1)

    def text_states(self, ids: Tensor) -> Tensor:
        inside = _places(ids) <= self.end_of_text(ids).unsqueeze(1)
        states: Tensor = self.text.bert(input_ids=ids, attention_mask=inside.long()).last_hidden_state
        return states

    def pool_text(self, hidden: Tensor, end: Tensor) -> Tensor:
        """Unit text vectors ``[..., n, dim]``: the projected mean of ``[..., n, L, width]`` up to ``end [n]``."""
        inside = torch.arange(hidden.shape[-2], device=hidden.device) <= end.unsqueeze(1)
        mean = (hidden * inside.unsqueeze(-1)).sum(dim=-2) / inside.sum(dim=-1, keepdim=True)
        return F.normalize(self.text.ln_final(mean) @ self.text.text_projection, dim=-1)

    def _identity(self) -> list[Any]:
        towers = [self.clip.visual.vit.config, self.clip.text.bert.config]
        shapes = [[c.model_type, c.num_attention_heads, c.hidden_act, c.layer_norm_eps] for c in towers]
        return [_PREFIX, self.spec.size, shapes, _TEXT_LENGTH, self._tokenizer.digest]


class _Towers(nn.Module):
    """Both towers, laid out and named as those of a CLIP."""

    def __init__(self, vit: Any, bert: Any, projections: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.visual = _ImageTower(vit, projections[0])
        self.text = _TextTower(bert, projections[1])
        self.logit_scale = nn.Parameter(torch.tensor(_LOGIT_SCALE))


class _ImageTower(nn.Module):
    def __init__(self, vit: Any, projection: Tensor) -> None:
        super().__init__()
        self.vit: Any = vit
        self.proj = nn.Parameter(projection)  # [width, dim]

    @property
    def ln_post(self) -> nn.Module:
        return cast(nn.Module, self.vit.layernorm)


class _TextTower(nn.Module):
    def __init__(self, bert: Any, projection: Tensor) -> None:
        super().__init__()
        self.bert: Any = bert
        self.ln_final = nn.Identity()  # BERT has normalised its states; here methods see what is projected
        self.text_projection = nn.Parameter(projection)  # [width, dim]

    @property
    def positional_embedding(self) -> Tensor:
        return cast(Tensor, self.bert.embeddings.position_embeddings.weight[:_TEXT_LENGTH])


class _Block:
    """A layer that can be run, but not looked into."""

    def __init__(self, backbone: TransformersBackbone, layer: nn.Module) -> None:
        self._backbone = backbone
        self._layer = layer

    def __call__(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self._layer(tokens))

    def __getattr__(self, part: str) -> NoReturn:
        raise self._backbone.closed()


class _Tokenizer:
    """Texts to ids ``[n, L]``, padded at the end to the longest and cut to what the tower reads.

    Nothing in it changes after construction: it may serve several threads, and copies of a backbone share it.

    Args:
        source: model or folder.
        length: of the longest text.

    Attributes:
        size: number of tokens that it knows.
        digest: of all of them.
    """

    def __init__(self, source: str, length: int) -> None:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        if tokenizer.pad_token_id != _PADDING:
            raise BackboneUnsupported(
                f"the tokenizer of {source!r} pads with token {tokenizer.pad_token_id}, not with {_PADDING} as BERT's"
            )
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.enable_truncation(length)
        self._tokenizer.enable_padding(pad_id=_PADDING, pad_token=tokenizer.pad_token)
        vocabulary = sorted(tokenizer.get_vocab().items())
        self.size = len(vocabulary)
        self.digest = hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))])

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tokenizer:
        return self


def transformers_frame_spec(name: str, frames: int | None = None) -> FrameSpec:
    """Frames per video and frame size, from the vision model's ``config.json``.

    Raises:
        BackboneUnavailable: no such model or folder; says what to put where.
        BackboneUnsupported: not a ViT or DeiT of square images.
    """
    with _reading(name):
        config = _config(name, _split(name)[0], _VISION)
        if not isinstance(config.image_size, int):
            raise BackboneUnsupported(f"backbone {name!r}: images of {config.image_size} are not square")
        return FrameSpec(frames or _DEFAULT_FRAMES, config.image_size)


def load_transformers(name: str, frames: int | None = None) -> TransformersBackbone:
    """A ViT (or DeiT) and a BERT with their weights.

    Raises:
        BackboneUnavailable: no such model or folder, or weights that do not fit; says what to put where.
        BackboneUnsupported: other architectures than these.
    """
    spec = transformers_frame_spec(name, frames)
    vision, text = _split(name)
    with _reading(name):
        vit, visual_projection = _tower(name, vision, _VISION, "visual_projection.weight")
        bert, text_projection = _tower(name, text, _TEXT, "text_projection.weight")
        tokenizer = _Tokenizer(text, min(_TEXT_LENGTH, bert.config.max_position_embeddings))
        mean, std = _normalisation(vision)
    if tokenizer.size > bert.config.vocab_size:
        raise BackboneUnavailable(
            f"backbone {name!r}: the tokenizer of {text!r} has {tokenizer.size} tokens, its weights are for "
            f"{bert.config.vocab_size}: put the tokenizer files there that belong to the weights"
        )
    widths = vit.config.hidden_size, bert.config.hidden_size
    projections = _projections(name, widths, visual_projection, text_projection)
    return TransformersBackbone(name, _Towers(vit, bert, projections), tokenizer, spec, mean, std)


def _split(name: str) -> tuple[str, str]:
    vision, _, text = name.removeprefix(_PREFIX).partition("+")
    if not vision or not text or "+" in text:
        raise BackboneUnavailable(
            f"backbone {name!r} does not name two towers: use '{_PREFIX}<vision model or folder>+<text model or "
            f"folder>', for example '{_PREFIX}google/vit-base-patch16-384+google-bert/bert-base-uncased'"
        )
    return vision, text


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Says what to do when a model cannot be read; keeps the library's own reports off the terminal."""
    reports: Any = logging
    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the library, the hub client and safetensors each raise their own kinds
        raise BackboneUnavailable(
            f"backbone {name!r} could not be loaded ({type(error).__name__}: {error}). Without a connection to the "
            "model hub, give two folders in the format of the transformers library, with config.json and "
            "model.safetensors, and for the text its tokenizer files: "
            f"{_PREFIX}<path to the vision folder>+<path to the text folder>"
        ) from error
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()


def _config(name: str, source: str, classes: dict[str, type[PreTrainedModel]]) -> Any:
    settings, _ = PreTrainedConfig.get_config_dict(source)
    kind = settings.get("model_type")
    if kind not in classes:
        raise BackboneUnsupported(
            f"backbone {name!r}: {source!r} is of type {kind!r}; this tower must be {' or '.join(classes)}"
        )
    return cast(Any, classes[kind].config_class).from_dict(settings)


def _tower(
    name: str, source: str, classes: dict[str, type[PreTrainedModel]], key: str
) -> tuple[Any, Tensor | None]:
    """A tower without heads, and the projection that lies beside it under ``key``, if any."""
    config = _config(name, source, classes)
    model, report = cast(Any, classes[config.model_type]).from_pretrained(
        source,
        config=config,
        add_pooling_layer=False,
        attn_implementation="sdpa",  # else a checkpoint could name an implementation that is code on the hub
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    if report["missing_keys"]:
        lacking = sorted(report["missing_keys"])
        raise BackboneUnavailable(
            f"backbone {name!r}: the weights of {source!r} do not fit its config.json: {len(lacking)} are missing, "
            f"the first is {lacking[0]}"
        )
    if key not in report["unexpected_keys"]:
        return model, None
    with safe_open(cached_file(source, SAFE_WEIGHTS_NAME), framework="pt") as file:
        return model, file.get_tensor(key).float()


def _projections(
    name: str, widths: tuple[int, int], visual: Tensor | None, text: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Of images and texts, each ``[width, dim]``: those of the checkpoints, ``[dim, width]`` there, or fresh ones."""
    if visual is None and text is None:
        random = torch.Generator().manual_seed(_SEED)
        fresh = [torch.randn(width, _DIM, generator=random) / math.sqrt(width) for width in widths]
        return fresh[0], fresh[1]
    if visual is not None and text is not None:
        dim = len(visual)
        if (visual.shape, text.shape) == ((dim, widths[0]), (dim, widths[1])):
            return visual.T.contiguous(), text.T.contiguous()
    found = [None if tensor is None else list(tensor.shape) for tensor in (visual, text)]
    raise BackboneUnavailable(
        f"backbone {name!r}: visual_projection.weight is {found[0]} and text_projection.weight {found[1]}; they must "
        f"be [dim, {widths[0]}] and [dim, {widths[1]}], or neither be there"
    )


def _normalisation(source: str) -> tuple[Sequence[float], Sequence[float]]:
    if Path(source).is_dir() and not (Path(source) / _PREPROCESSOR).exists():
        return _HALF, _HALF
    settings, _ = ImageProcessingMixin.get_image_processor_dict(source)
    return settings.get("image_mean", _HALF), settings.get("image_std", _HALF)


def _places(ids: Tensor) -> Tensor:
    """Position of every token, ``[n, L]``."""
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
