"""What all backbones share: an image tower, a text tower, and one space that both end in."""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.compute_options import Precision
from models.errors import BackboneUnsupported, ReleaseError

__all__ = ["Backbone", "FrameSpec"]


class FrameSpec(NamedTuple):
    """What a backbone wants to see of a video."""

    frames: int  # frames per video
    size: int  # side of the square frame, pixels


class Backbone(nn.Module, ABC):
    """A dual encoder, frozen and in evaluation mode.

    Adapters that work inside the blocks of a tower need :attr:`has_open_blocks`; what they reach for raises
    :class:`~models.errors.BackboneUnsupported` otherwise.

    Args:
        name: the name it was asked for by.
        clip: the towers: ``visual`` with ``ln_post`` and ``proj``, a text tower, and ``logit_scale``, which only
            pre-training trains. Releases know the weights as ``clip.…``.
        tokenizer: callable from texts to ids ``[n, L]``.
        spec: frames per video and frame size.
        mean, std: RGB normalisation, in 0..1.

    Attributes:
        query_precision: in which the text tower computes for queries. Weights and vectors stay float32.
    """

    has_open_blocks: ClassVar[bool]  # whether adapters can work inside the towers' blocks
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
        self.fingerprint = self._fingerprint()
        self.query_precision: Precision = "float32"
        self.requires_grad_(False).eval()

    # -- what it is -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def dim(self) -> int:
        """Width of the joint embedding space."""

    @property
    @abstractmethod
    def token_embedding(self) -> nn.Embedding:
        """The table of the text tower's token embeddings, ``[V, width]``."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of tokens that :meth:`tokenize` may give."""

    @property
    def device(self) -> torch.device:
        return self.mean.device

    # -- frames -----------------------------------------------------------------------------------------

    def pixels(self, frames: Tensor) -> Tensor:
        """Normalised pixels ``[n·M, 3, H, W]`` of ``uint8 [n, M, H, W, 3]`` frames."""
        pixels = frames.flatten(0, 1).permute(0, 3, 1, 2).to(self.device, self.mean.dtype)
        return (pixels - self.mean) / self.std

    @abstractmethod
    def embed_frames(self, frames: Tensor) -> Tensor:
        """Class and patch tokens ``[n, M, P+1, width]`` of ``uint8 [n, M, H, W, 3]`` frames."""

    @property
    @abstractmethod
    def visual_blocks(self) -> list[Any]:
        """Blocks of the image tower, each from tokens ``[n, P+1, width]`` to the same."""

    def pool_frames(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Unit video vectors ``[n, dim]`` and frame vectors ``[n, M, dim]`` of tokens ``[n, M, P+1, width]``.

        The video vector is the projected mean of the frames' normalised class tokens; frames are not
        brought to unit length before the mean.
        """
        visual = self.clip.visual
        projected = visual.ln_post(tokens[:, :, 0]) @ visual.proj
        return F.normalize(projected.mean(dim=1), dim=-1), F.normalize(projected, dim=-1)

    # -- texts ------------------------------------------------------------------------------------------

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Token ids ``[n, L]``, as long as the longest text."""

    @abstractmethod
    def end_of_text(self, ids: Tensor) -> Tensor:
        """Position of the end-of-text token, ``[n]``; what follows it is padding."""

    def text_states(self, ids: Tensor) -> Tensor:
        """States ``[n, L, width]`` of ids ``[n, L]`` after the last block of a text tower that runs as a whole.

        Open blocks are walked one by one, in ``models.encoders.tower_forward``.
        """
        raise AssertionError(f"the text tower of {self.name!r} is walked block by block")

    @abstractmethod
    def pool_text(self, hidden: Tensor, end: Tensor) -> Tensor:
        """Unit text vectors ``[..., n, dim]`` of hidden states ``[..., n, L, width]`` of texts that end at
        ``end [n]``."""

    @property
    def text_blocks(self) -> list[Any]:
        """Blocks of the text tower."""
        raise self.closed()

    def with_text_blocks(self, blocks: Sequence[nn.Module]) -> Backbone:
        """A backbone that walks these blocks in place of its own, and shares everything else with this one."""
        raise self.closed()

    @property
    def text_width(self) -> int:
        """Width of the text tower."""
        raise self.closed()

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Token and position embeddings ``[n, L, width]`` of ids ``[n, L]``."""
        raise self.closed()

    def closed(self) -> BackboneUnsupported:
        """The error of whoever wants to work inside blocks that are not open."""
        return BackboneUnsupported(
            f"backbone {self.name!r} runs its blocks as they are, so nothing can be adapted inside them: use "
            "'tiny' or 'open_clip:<model>/<pretrained tag or local file>'"
        )

    # -- weights ----------------------------------------------------------------------------------------

    def clone(self) -> Backbone:
        """A copy with weights of its own, for methods that train the towers."""
        return copy.deepcopy(self)

    def clone_image_tower(self) -> Backbone:
        """A copy with an image tower of its own; all other weights are shared."""
        image_tower = {id(parameter) for parameter in self.clip.visual.parameters()}
        shared = {id(p): p for p in self.parameters() if id(p) not in image_tower}
        return copy.deepcopy(self, shared)

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

    @abstractmethod
    def _identity(self) -> list[Any]:
        """What tells it from another backbone beside weights and normalisation; wherever its files lie."""

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self._identity()).encode())
        digest.update(self.mean.cpu().numpy().tobytes() + self.std.cpu().numpy().tobytes())
        for key, value in sorted(self.clip.state_dict().items()):
            digest.update(key.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
