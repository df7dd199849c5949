"""The interface that all backbones share: an image tower, a text tower, and the joint space they project to."""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones import Precision
from models.backbones.backbone_description import FrameSpec, TextBackground
from models.errors import BackboneUnsupported, ReleaseError


class Backbone(nn.Module, ABC):
    """A dual encoder, frozen and in evaluation mode.

    Adapters inside tower blocks need :attr:`has_open_blocks`; without it, the members that they use raise
    :class:`~models.errors.BackboneUnsupported`.

    Args:
        clip: The towers: ``visual`` with ``ln_post`` and ``proj``, a text tower, and ``logit_scale``, which only
            pre-training changes. Releases store the weights as ``clip.…``.
        tokenizer: Function from texts to IDs ``[n, L]``.
        mean: RGB mean used for normalization, 0..1.
        std: RGB standard deviation used for normalization, 0..1.
    """

    has_open_blocks: ClassVar[bool]  # methods can change the towers, adapters work inside their blocks
    has_causal_text: ClassVar[bool] = True  # no word attends to later ones: the last token stands for all
    has_frozen_network: ClassVar[bool] = False  # whether frame tokens come from one that no method trains
    padding: int = 0  # token ID after the end of a text
    mean: Tensor
    std: Tensor
    text: Any  # the text tower

    def __init__(
        self,
        name: str,
        clip: Any,
        tokenizer: Any,
        spec: FrameSpec,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        self.name = name
        self.spec = spec
        self.clip = clip
        self._tokenizer = tokenizer
        # [1, 3, 1, 1], in the 0..255 scale of the frames
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1) * 255, persistent=False)
        self.fingerprint = self.compute_fingerprint()  # of weights, architecture and preprocessing
        # Of the text tower's matrix products for queries; weights and vectors stay float32.
        self.query_precision: Precision = "float32"
        self.image_precision: Precision = "float32"  # of a frozen encoder's image tower
        self.requires_grad_(False).eval()

    # -- properties -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension of the joint embedding space."""

    @property
    def token_embedding(self) -> nn.Embedding:
        """Token embeddings of the text tower, ``[V, width]``."""
        raise self.closed_blocks_error()

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Vocabulary size V of :meth:`tokenize`."""

    @property
    def feature_dim(self) -> int:
        """Dimension of the vectors that :meth:`video_features` computes: the token width of an open image tower."""
        return int(self.clip.visual.proj.shape[0])

    @property
    def semantic_dim(self) -> int:
        """How many of the first coordinates the frozen towers fill; the others are zero in all their vectors."""
        return self.dim

    @property
    def text_background(self) -> TextBackground | None:
        """Distribution of generic texts; None if the backbone has none, and closed-form methods compute it."""
        return None

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def engine(self) -> str:
        """Name and version of the library that runs the frozen towers."""
        return f"torch {torch.__version__}"

    @property
    def image_fingerprint(self) -> str:
        """Fingerprint of what video encoders use, which depends on the precision."""
        return self.fingerprint + (f":{self.image_precision}" if self.image_precision != "float32" else "")

    # -- frames -----------------------------------------------------------------------------------------

    def pixels(self, frames: Tensor) -> Tensor:
        """Normalize frames ``uint8 [n, M, H, W, 3]`` to pixels ``[n·M, 3, H, W]``."""
        moved = frames.to(self.device, non_blocking=True)  # as bytes, a quarter of the floats
        pixels = moved.flatten(0, 1).permute(0, 3, 1, 2).to(self.mean.dtype)
        return (pixels - self.mean) / self.std

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Compute class and patch tokens ``[n, M, P+1, width]`` from frames ``uint8 [n, M, H, W, 3]``."""
        raise self.closed_blocks_error()

    @property
    def visual_blocks(self) -> list[Any]:
        """Blocks of the image tower, which :func:`~models.backbones.tower_computation.open_block` runs step by step."""
        raise self.closed_blocks_error()

    def pool_frames(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Project class tokens to unit vectors of videos ``[n, dim]`` and frames ``[n, M, dim]``.

        A video vector is the mean of its frames' projected class tokens, normalized only after averaging. Tokens are
        those after the last block, ``[n, M, P+1, width]``.
        """
        visual = self.clip.visual
        projected = visual.ln_post(tokens[:, :, 0]) @ visual.proj
        return F.normalize(projected.mean(dim=1), dim=-1), F.normalize(projected, dim=-1)

    @torch.no_grad()
    def video_features(self, frames: Tensor) -> Tensor:
        """Average the class tokens of frames ``uint8 [n, M, H, W, 3]`` before the projection,
        ``float32 [n, feature_dim]``, for closed-form maps.
        """
        tokens = self.embed_frames(frames).flatten(0, 1)
        for block in self.visual_blocks:
            tokens = block(tokens)
        features: Tensor = self.clip.visual.ln_post(tokens[:, 0]).unflatten(0, frames.shape[:2])
        return features.mean(dim=1).float()

    def project_features(self, features: Tensor) -> Tensor:
        """Project :meth:`video_features` ``[n, F]`` to unit video vectors ``[n, dim]``, without learned weights."""
        return F.normalize(features @ self.clip.visual.proj, dim=-1)

    # -- texts ------------------------------------------------------------------------------------------

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Convert texts to token IDs ``[n, L]``, padded to the longest text."""

    @abstractmethod
    def end_of_text(self, ids: Tensor) -> Tensor:
        """Find the end-of-text token, ``[n]``; later positions are padding."""

    @property
    def word_ids(self) -> range:
        """Token IDs other than special tokens."""
        return range(int(self.tokenize([""])[0, 0]))  # the special tokens are the last of CLIP's vocabulary

    def text_mask(self, length: int, end: Tensor) -> Tensor | None:
        """Mask the padding, ``[n, 1, 1, length]``, True where tokens may attend; None if padding has no effect."""
        return None

    def text_vectors(self, ids: Tensor) -> Tensor:
        """Encode token IDs ``[n, L]`` to unit vectors ``[n, dim]``, for text towers that are not causal.

        :mod:`models.encoders.tower_forward` runs the others, and blocks with adapters, block by block.
        """
        raise AssertionError(f"the text tower of {self.name!r} is causal")

    def pool_text(self, hidden: Tensor, end: Tensor) -> Tensor:
        """Pool states ``[..., n, L, width]`` of texts that end at ``end [n]`` to unit vectors ``[..., n, dim]``."""
        raise self.closed_blocks_error()

    @property
    def text_blocks(self) -> list[Any]:
        """Blocks of the text tower."""
        raise self.closed_blocks_error()

    def with_text_blocks(self, blocks: Sequence[nn.Module]) -> Backbone:
        """Replace the text blocks, and share everything else with this backbone."""
        raise self.closed_blocks_error()

    @property
    def text_width(self) -> int:
        """Token width of the text tower."""
        return int(self.token_embedding.embedding_dim)

    def embed_words(self, words: Tensor) -> Tensor:
        """Turn token embeddings ``[..., n, L, width]`` into input for the first text block, of the same shape."""
        raise self.closed_blocks_error()

    def closed_blocks_error(self) -> BackboneUnsupported:
        """Build the error for adapters that would work inside closed blocks."""
        return BackboneUnsupported(
            f"backbone {self.name!r} is a frozen encoder, so nothing in its towers can be learned: use 'small', or a "
            "plain CLIP such as 'open_clip:ViT-B-32/openai'"
        )

    # -- weights ----------------------------------------------------------------------------------------

    def clone(self) -> Backbone:
        """Copy the weights, except those of a frozen network, for methods that train the towers."""
        return self._copy({})

    def unfreeze(self) -> None:
        """Require gradients for all weights that methods train; the temperature stays fixed."""
        self.requires_grad_(True)
        self.clip.logit_scale.requires_grad_(False)

    def clone_image_tower(self) -> Backbone:
        """Copy the image tower, and share all other weights."""
        image_tower = {id(parameter) for parameter in self.clip.visual.parameters()}
        shared = {id(p): p for p in self.parameters() if id(p) not in image_tower}
        return self._copy(shared)

    def clone_text_tower(self) -> Backbone:
        """Copy the text tower, and share the image tower."""
        return self._copy({id(self.clip.visual): self.clip.visual})

    def _copy(self, shared: dict[int, Any]) -> Backbone:
        """Copy deeply, except ``shared`` by ID and the tokenizer, which takes longer to copy than the weights."""
        return copy.deepcopy(self, {**shared, id(self._tokenizer): self._tokenizer})

    def tensors(self) -> dict[str, Tensor]:
        """Collect the weights by name, as a release stores them, without those of a frozen network."""
        return {f"clip.{name}": value.detach() for name, value in self.clip.state_dict().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load weights from :meth:`tensors`; raise ReleaseError if names or shapes do not fit this architecture."""
        self._load(self.clip, {name.removeprefix("clip."): value for name, value in tensors.items()})

    def load_image_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the weights of the image tower, named as within it."""
        self._load(self.clip.visual, tensors)

    def load_text_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the weights of the text tower, named as in the model."""
        image = {f"visual.{name}": tensor for name, tensor in self.clip.visual.state_dict().items()}
        self._load(self.clip, {**image, **tensors})

    def _load(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        try:
            module.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise ReleaseError(f"the weights do not fit backbone {self.name!r}: {error}") from error

    @abstractmethod
    def _identity(self) -> list[Any]:
        """List JSON-serializable facts that identify the backbone, besides its weights and normalization.

        They must not depend on where its files are stored.
        """

    def compute_fingerprint(self) -> str:
        """Compute the digest of the current weights, architecture and preprocessing."""
        digest = hashlib.sha256(json.dumps(self._identity()).encode())
        digest.update(self.mean.cpu().numpy().tobytes() + self.std.cpu().numpy().tobytes())
        for key, value in sorted(self.clip.state_dict().items()):
            digest.update(key.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
