"""Dual encoders whose weights never change: whole towers, run by functions of their library.

A video's features are the mean of its frames' image embeddings; the joint space is the model's own. Token IDs are those
of the model's tokenizer, with its padding where the model was trained to read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import structlog
import torch
from huggingface_hub import constants, get_session
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.tower_computation import forward_precision, mixed_precision
from models.errors import BackboneUnavailable, BackboneUnsupported, ModelError

log = structlog.get_logger(__name__)

_HUB_SECONDS = 3.0
DEFAULT_FRAMES = 12  # ctvr-ffa-tame, section 4.4 (MSR-VTT)
_MAX_SIDE = 4096  # pixels; more is a damaged configuration
_CHUNKS = {"cpu": 8, "cuda": 256}  # frames per forward pass
# Texts whose tokens tell apart how tokenizers treat case, accents, punctuation and other scripts.
_PROBES = ("", "A Photo of 3 CATS, “naïve” café-goers &amp; more!", "Снег идёт, 北京 is 雪", "word " * 600)


class FrozenEncoder(Backbone):
    """A dual encoder with closed towers, which run as functions of a library.

    Args:
        model: The towers; the image tower may be missing.
        embed_images: Function from normalized pixels ``[n, 3, H, W]`` to vectors ``[n, dim]``.
        embed_texts: Function from token IDs ``[n, L]`` to vectors ``[n, dim]``.
        tokenizer: Function from texts to token IDs ``[n, L]``. It need not be thread-safe.
        identity: What identifies architecture and vocabulary besides :data:`_PROBES`, serializable as JSON.
        end_of_text: Function from token IDs to the positions of the last tokens that the towers read, ``[n]``; None if
            they read the padding, too.

    Raises:
        BackboneUnsupported: A text has several vectors.
    """

    has_open_blocks = False
    has_causal_text = False

    def __init__(
        self,
        name: str,
        model: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        *,
        embed_images: Callable[[Tensor], Tensor],
        embed_texts: Callable[[Tensor], Tensor],
        spec: FrameSpec,
        mean: Sequence[float],
        std: Sequence[float],
        vocabulary: int,
        identity: list[Any],
        weights: Sequence[Path],
        end_of_text: Callable[[Tensor], Tensor] | None = None,
        padding: int = 0,
    ) -> None:
        self._facts = [*identity, spec.size, list(mean), list(std), tokenizer(list(_PROBES)).tolist()]
        for path in weights:
            with path.open("rb") as file:
                self._facts.append(hashlib.file_digest(file, "sha256").hexdigest())
        self._embed_images, self._embed_texts = embed_images, embed_texts
        self._vocabulary, self._end_of_text, self.padding = vocabulary, end_of_text, padding
        self._lock = Lock()
        super().__init__(name, model, tokenizer, spec, mean=mean, std=std)
        vectors = self.text_vectors(self.tokenize([""]))
        if vectors.dim() != 2:
            raise BackboneUnsupported(f"backbone {name!r} has a vector for each token, not one for a text")
        self._dim = vectors.shape[1]

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def feature_dim(self) -> int:
        return self._dim

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    @torch.no_grad()
    def frame_vectors(self, frames: Tensor) -> Tensor:
        """Embed frames ``uint8 [n, M, H, W, 3]`` to ``float32 [n, M, dim]`` without normalization."""
        with mixed_precision(enabled=self.image_precision == "bfloat16"), forward_precision(self.device):
            vectors = self._embed_within(frames.flatten(0, 1), _CHUNKS.get(self.device.type, 8))
        return vectors.view(*frames.shape[:2], -1)

    def _embed_within(self, frames: Tensor, size: int) -> Tensor:
        """Embed frames in passes of ``size``, or of fewer if the memory is too small."""
        try:
            parts = [
                self._embed_images(self.pixels(part[None])).float() for part in torch.split(frames, size)
            ]
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            return self._embed_within(frames, size // 2)
        return torch.cat(parts)

    def video_features(self, frames: Tensor) -> Tensor:
        return self.frame_vectors(frames).mean(dim=1)

    def project_features(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        with self._lock:  # a tokenizer of transformers cannot serve two threads at once
            ids: Tensor = self._tokenizer(list(texts))
        return ids

    def end_of_text(self, ids: Tensor) -> Tensor:
        if self._end_of_text is None:
            return ids.new_full((len(ids),), ids.shape[1] - 1)
        return self._end_of_text(ids)

    @torch.no_grad()
    def text_vectors(self, ids: Tensor) -> Tensor:
        with forward_precision(self.device):
            vectors = self._embed_texts(ids)
        return F.normalize(vectors.float(), dim=-1)

    def _identity(self) -> list[Any]:
        return self._facts

    def compute_fingerprint(self) -> str:
        """Compute the digest of configuration, preprocessing and files of weights, whichever towers are loaded."""
        return hashlib.sha256(json.dumps(self._identity()).encode()).hexdigest()


def build_frame_spec(
    frames: int | None, shape: tuple[int, int], resize_mode: str, interpolation: str
) -> FrameSpec:
    """Describe a model's frames: height and width in pixels, crop, squash or pad, and Pillow's interpolation; raise
    ValueError if the size is impossible.
    """
    if not all(isinstance(side, int) and 0 < side <= _MAX_SIDE for side in shape):
        raise ValueError(f"frames of {shape[0]!r} × {shape[1]!r} pixels are impossible")
    return FrameSpec(frames or DEFAULT_FRAMES, (*shape, resize_mode, interpolation))


@contextmanager
def loading_errors(name: str, advice: str, *, uses_hub: bool = False) -> Iterator[None]:
    """Turn the unrelated errors of model libraries, the hub client and torch into :class:`BackboneUnavailable`.

    Args:
        advice: What to do without a connection to the model hub.
        uses_hub: Whether to ask the hub for files. If it does not answer, only its cache is read: its client would try
            each file again for half a minute.
    """
    is_offline = uses_hub and not constants.HF_HUB_OFFLINE and not _hub_answers()
    try:
        if is_offline:
            constants.HF_HUB_OFFLINE = True
        yield
    except ModelError:
        raise
    except Exception as error:
        is_missing = is_offline and isinstance(error, OSError)
        reason = f"{constants.ENDPOINT} does not answer" if is_missing else f"{type(error).__name__}: {error}"
        raise BackboneUnavailable(
            f"backbone {name!r} could not be loaded ({reason}). Without a connection to the model hub, {advice}"
        ) from error
    finally:
        if is_offline:
            constants.HF_HUB_OFFLINE = False


def _hub_answers() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
    except Exception as error:  # the client's HTTP library, and so its errors, differ between versions
        log.warning("model_hub_unreachable", endpoint=constants.ENDPOINT, error=str(error))
        return False
    return True


def vocabulary_digest(tokenizer: Any) -> str:
    """Compute the digest of a transformers tokenizer's vocabulary."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
