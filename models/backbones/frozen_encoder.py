"""Dual encoders of which nothing is learned: whole towers, run as their library runs them.

A video's features are the mean of its frames' image embeddings; the joint space is the model's own. Token IDs are those
of the model's tokenizer, with its padding where the model was trained to read it.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.tower_computation import forward_precision
from models.errors import BackboneUnavailable

_CHUNKS = {"cpu": 8, "cuda": 256}  # frames per forward pass
# Texts whose tokens tell apart how tokenizers treat case, accents, punctuation and other scripts.
_PROBES = ("", "A Photo of 3 CATS, “naïve” café-goers &amp; more!", "Снег идёт, 北京 is 雪", "word " * 600)


class FrozenEncoder(Backbone):
    """A dual encoder with closed towers; subclasses call the functions of a library.

    Args:
        model: The towers; the image tower may be missing.
        tokenizer: Function from texts to token IDs ``[n, L]``. It need not be thread-safe.
        vocabulary: Number of token IDs.
        identity: What identifies architecture, weights and vocabulary besides :data:`_PROBES`, serializable as JSON.
        padding: Token ID after the end of a text; None if every text has the same length.
    """

    has_open_blocks = False
    has_causal_text = False

    def __init__(
        self,
        name: str,
        model: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        *,
        spec: FrameSpec,
        mean: Sequence[float],
        std: Sequence[float],
        vocabulary: int,
        identity: list[Any],
        padding: int | None = None,
    ) -> None:
        self._facts = [*identity, spec.size, list(mean), list(std), tokenizer(list(_PROBES)).tolist()]
        self._vocabulary = vocabulary
        self._lock = Lock()
        self._padding = padding
        self.padding = padding or 0
        super().__init__(name, model, tokenizer, spec, mean, std)
        self._dim = self.text_vectors(self.tokenize([""])).shape[-1]

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
        parts = torch.split(frames.flatten(0, 1), _CHUNKS.get(self.device.type, 8))
        with forward_precision(self.device):
            vectors = torch.cat([self._embed_images(self.pixels(part[None])).float() for part in parts])
        return vectors.view(*frames.shape[:2], -1)

    def video_features(self, frames: Tensor) -> Tensor:
        return self.frame_vectors(frames).mean(dim=1)

    def project_features(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        with self._lock:  # a tokenizer of transformers cannot serve two threads at once
            ids: Tensor = self._tokenizer(list(texts))
        return ids

    def end_of_text(self, ids: Tensor) -> Tensor:
        if self._padding is None:
            return ids.new_full((len(ids),), ids.shape[1] - 1)
        return (ids != self._padding).sum(dim=-1) - 1

    @torch.no_grad()
    def text_vectors(self, ids: Tensor) -> Tensor:
        with forward_precision(self.device):
            vectors = self._embed_texts(ids)
        return F.normalize(vectors.float(), dim=-1)

    @abstractmethod
    def _embed_images(self, pixels: Tensor) -> Tensor:
        """Embed normalized pixels ``[n, 3, H, W]`` to ``[n, dim]``."""

    @abstractmethod
    def _embed_texts(self, ids: Tensor) -> Tensor:
        """Embed token IDs ``[n, L]`` to ``[n, dim]``."""

    def _identity(self) -> list[Any]:
        return self._facts

    def compute_fingerprint(self) -> str:
        """Compute the digest of configuration, preprocessing and files of weights, whichever towers are loaded."""
        return hashlib.sha256(json.dumps(self._identity()).encode()).hexdigest()


def file_digests(paths: Iterable[Path]) -> list[str]:
    """Compute the SHA-256 of each file."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests


def vocabulary_digest(tokenizer: Any) -> str:
    """Compute the digest of a transformers tokenizer's vocabulary."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def require_fit(name: str, expected: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Compare the tensors of a file with those of an architecture.

    Raises:
        BackboneUnavailable: They differ; the message names the first tensor that does not fit.
    """
    for key in [*expected, *tensors]:
        shapes = [list(found[key].shape) if key in found else None for found in (tensors, expected)]
        if shapes[0] != shapes[1]:
            raise BackboneUnavailable(
                f"backbone {name!r}: the weights are of another model: {key} has the shape {shapes[0]} in the file, "
                f"but {shapes[1]} in the configuration"
            )
