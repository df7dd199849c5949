"""Backbones: CLIP dual encoders with their towers open, so that adapters can work inside the blocks.

A backbone is named ``tiny`` (ships with the project) or ``open_clip:<model>/<tag or local file>``, for
example ``open_clip:ViT-B-32/openai``. Frames are ``uint8 [n, M, H, W, 3]``; normalisation happens here.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import open_clip
import torch
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.transformer import ResidualAttentionBlock, TextTransformer, VisionTransformer
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from models.errors import BackboneUnavailable, BackboneUnsupported, ReleaseError
from models.tokenizer import clip_tokenizer, small_tokenizer

__all__ = ["Backbone", "FrameSpec", "frame_spec", "load_backbone"]

_TINY = "tiny"
_TINY_FRAMES = 8
_DEFAULT_FRAMES = 12  # ctvr-ffa-tame, section 4.4 (MSR-VTT)
_PREFIX = "open_clip:"


class FrameSpec(NamedTuple):
    """What a backbone wants to see of a video."""

    frames: int  # frames per video
    size: int  # side of the square frame, pixels


class Backbone(nn.Module):
    """A CLIP dual encoder whose towers are walked block by block.

    Args:
        name: the name it was asked for by.
        clip: the open_clip model; both towers must be plain pre-norm transformers.
        tokenizer: callable from texts to ids ``[n, context_length]``.
        spec: frames per video and frame size.
        mean, std: RGB normalisation, in 0..1.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        clip: CLIP | CustomTextCLIP,
        tokenizer: Any,
        spec: FrameSpec,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        _require_plain_towers(name, clip)
        self.name = name
        self.spec = spec
        self.clip = clip
        self.text: CLIP | TextTransformer = getattr(clip, "text", clip)
        self._tokenizer = tokenizer
        # [1, 3, 1, 1], in the 0..255 scale of the frames
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1) * 255, persistent=False)
        self.fingerprint = self._fingerprint()
        self.requires_grad_(False).eval()

    @property
    def dim(self) -> int:
        """Width of the joint embedding space."""
        return int(self.clip.visual.output_dim)

    @property
    def visual_blocks(self) -> list[ResidualAttentionBlock]:
        return list(self.clip.visual.transformer.resblocks)

    @property
    def text_blocks(self) -> list[ResidualAttentionBlock]:
        return list(self.text.transformer.resblocks)

    @property
    def text_width(self) -> int:
        return int(self.text.ln_final.normalized_shape[0])

    @property
    def vocabulary(self) -> int:
        """Number of tokens that :meth:`tokenize` may give."""
        return int(self.text.vocab_size)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Token ids ``[n, L]``, cut to the longest text: causal attention never looks past its end."""
        ids: Tensor = self._tokenizer(list(texts))
        return ids[:, : int(self.end_of_text(ids).max()) + 1]

    def end_of_text(self, ids: Tensor) -> Tensor:
        """Position of the end-of-text token, ``[n]``: CLIP gives it the highest id."""
        return ids.argmax(dim=-1)

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Patch and class tokens ``[n, M, P+1, width]`` of ``uint8 [n, M, H, W, 3]`` frames."""
        n, m = frames.shape[:2]
        pixels = frames.flatten(0, 1).permute(0, 3, 1, 2).to(self.device, self.mean.dtype)
        tokens: Tensor = self.clip.visual._embeds((pixels - self.mean) / self.std)
        return tokens.view(n, m, *tokens.shape[1:])

    def pool_frames(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Unit video vectors ``[n, dim]`` and frame vectors ``[n, M, dim]`` of tokens ``[n, M, P+1, width]``.

        The video vector is the projected mean of the frames' normalised class tokens; frames are not
        brought to unit length before the mean.
        """
        visual = self.clip.visual
        projected = visual.ln_post(tokens[:, :, 0]) @ visual.proj
        return F.normalize(projected.mean(dim=1), dim=-1), F.normalize(projected, dim=-1)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Token and position embeddings ``[n, L, width]`` of ids ``[n, L]``."""
        return torch.add(self.text.token_embedding(ids), self.text.positional_embedding[: ids.shape[1]])

    def pool_text(self, hidden: Tensor, end: Tensor) -> Tensor:
        """Unit text vectors ``[..., n, dim]`` of hidden states ``[..., n, L, width]`` at ``end [n]``."""
        rows = torch.arange(end.shape[0], device=hidden.device)
        pooled = self.text.ln_final(hidden[..., rows, end, :])
        projection = self.text.text_projection
        projected = projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection
        return F.normalize(projected, dim=-1)

    def clone(self) -> Backbone:
        """A copy with weights of its own, for methods that train the towers."""
        return copy.deepcopy(self)

    def tensors(self) -> dict[str, Tensor]:
        """The towers' weights by name, as a release keeps them."""
        return {f"clip.{name}": value.detach() for name, value in self.clip.state_dict().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave.

        Raises:
            ReleaseError: the names or shapes are not those of this architecture.
        """
        try:
            self.clip.load_state_dict({name.removeprefix("clip."): value for name, value in tensors.items()})
        except RuntimeError as error:
            raise ReleaseError(f"the weights do not fit backbone {self.name!r}: {error}") from error

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps([self.name.split("/")[0], self.spec.size]).encode())
        digest.update(self.mean.cpu().numpy().tobytes() + self.std.cpu().numpy().tobytes())
        for key, value in sorted(self.clip.state_dict().items()):
            digest.update(key.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def frame_spec(name: str, frames: int | None = None) -> FrameSpec:
    """Frames per video and frame size of a backbone, without loading its weights.

    Raises:
        BackboneUnavailable: no backbone has this name.
    """
    if name == _TINY:
        config = _tiny_config()
        return FrameSpec(frames or _TINY_FRAMES, int(config["vision_cfg"]["image_size"]))
    model, _ = _split(name)
    size = open_clip.get_model_config(model)["vision_cfg"].get("image_size", 224)
    return FrameSpec(frames or _DEFAULT_FRAMES, int(size))


def load_backbone(name: str, frames: int | None = None) -> Backbone:
    """The named backbone with its weights, frozen, in evaluation mode, on the CPU.

    Raises:
        BackboneUnavailable: unknown name, or weights that cannot be fetched; says which file to put where.
        BackboneUnsupported: towers that are not plain CLIP transformers.
    """
    spec = frame_spec(name, frames)
    if name == _TINY:
        weights = Path(str(resources.files("models") / "tiny" / "weights.safetensors"))
        if not weights.exists():
            raise BackboneUnavailable(
                "backbone 'tiny': models/tiny/weights.safetensors is missing; restore it from the "
                "repository, or make it anew with `cinestrata bench pretrain`"
            )
        return tiny_backbone(spec.frames, weights)
    model, source = _split(name)
    try:
        clip, _, transform = open_clip.create_model_and_transforms(
            model, pretrained=source, require_pretrained=True
        )
    except Exception as error:  # open_clip, the hub client and torch each raise their own kinds
        raise BackboneUnavailable(
            f"backbone {name!r}: the weights could not be loaded ({type(error).__name__}: {error}). Without "
            f"a connection to the model hub, put a checkpoint of {model} in open_clip's format "
            f"(.safetensors or .pt) on this machine and name it: {_PREFIX}{model}/<path to the file>"
        ) from error
    normalise = next(step for step in transform.transforms if hasattr(step, "mean"))
    tokenizer = clip_tokenizer(model, clip.context_length)
    return Backbone(name, clip, tokenizer, spec, tuple(normalise.mean), tuple(normalise.std))


def tiny_backbone(frames: int = _TINY_FRAMES, weights: Path | None = None) -> Backbone:
    """The backbone that ships; without ``weights`` it is freshly initialised, ready to be pre-trained."""
    config = _tiny_config()
    clip = CLIP(**config)
    if weights is not None:
        clip.load_state_dict(load_file(weights))
    text = config["text_cfg"]
    tokenizer = small_tokenizer(text["vocab_size"], text["context_length"])
    spec = FrameSpec(frames, config["vision_cfg"]["image_size"])
    return Backbone(_TINY, clip, tokenizer, spec, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def _tiny_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((resources.files("models") / "tiny" / "config.json").read_text())
    return config


def _split(name: str) -> tuple[str, str]:
    model, slash, source = name.removeprefix(_PREFIX).partition("/")
    if not name.startswith(_PREFIX) or not slash or not source:
        raise BackboneUnavailable(
            f"backbone {name!r} is unknown: use 'tiny' or '{_PREFIX}<model>/<pretrained tag or local file>', "
            f"for example '{_PREFIX}ViT-B-32/openai'"
        )
    if open_clip.get_model_config(model) is None:
        raise BackboneUnavailable(
            f"backbone {name!r}: open_clip knows no model {model!r}; `python -c 'import open_clip; "
            f"print(open_clip.list_models())'` lists those it knows"
        )
    return model, source


def _require_plain_towers(name: str, clip: nn.Module) -> None:
    visual, text = getattr(clip, "visual", None), getattr(clip, "text", clip)
    plain = (
        isinstance(visual, VisionTransformer)
        and visual.pool_type == "tok"
        and visual.attn_pool is None
        and not visual.final_ln_after_pool
        and isinstance(clip, CLIP | CustomTextCLIP)
        and isinstance(text, CLIP | TextTransformer)
        and getattr(text, "text_pool_type", getattr(text, "pool_type", "")) == "argmax"
        and getattr(text, "cls_emb", None) is None
        and text.attn_mask is not None
        and all(isinstance(b, ResidualAttentionBlock) for b in visual.transformer.resblocks)
        and all(isinstance(b, ResidualAttentionBlock) for b in text.transformer.resblocks)
    )
    if not plain:
        raise BackboneUnsupported(
            f"backbone {name!r}: adapters need a ViT image tower with a class token and a causal text tower "
            "pooled at the end of text (the architecture of the original CLIP)"
        )
