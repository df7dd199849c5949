"""Encoder families: how the weights of a release condition its query encoder and its video encoder.

The ``kind`` field of ``release.json`` names the family of a release. A method declares the family of its releases
(``Method.family``), and several methods can share one. To add a family, add a module to
:mod:`models.encoders.families` and register it in :mod:`models.encoders.encoder_registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.query_encoder import QueryEncoder
from models.encoders.tower_forward import encode_frames
from models.releases.release_state import ReleaseState


class FamilyVideoEncoder(ABC):
    """Video side of an encoder family: encodes frames with the weights of one release at a time.

    An instance can reuse a tower from release to release. It is not safe to share between threads.

    Args:
        backbone: Backbone that the releases were learned on. It is not changed.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    @abstractmethod
    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        """Load the video side of a release.

        Returns:
            Function from frames ``uint8 [n, M, H, W, 3]`` to unit video vectors ``[n, dim]``. It is valid until the
            next release is loaded.

        Raises:
            KeyError, RuntimeError: The tensors or settings of the release do not fit the backbone.
        """

    @staticmethod
    def fingerprint_tensors(release: ReleaseState) -> dict[str, Tensor]:
        """Tensors that the fingerprint of the release's video encoder covers; all of its video side by default.

        Args:
            release: Release with the tensors of its video side alone.
        """
        return release.tensors

    def _encode_with_backbone(self, frames: Tensor) -> Tensor:
        """Unit video vectors ``[n, dim]`` of the backbone without learned weights."""
        return encode_frames(self._backbone, frames)[0]


@dataclass(frozen=True)
class EncoderFamily:
    """Encoders that releases of one kind have in common.

    Attributes:
        kind: Value of the ``kind`` field in ``release.json``.
        query_encoder: Class of the query encoders. Its ``modes`` are the query modes that the family offers.
        query_prefixes: Name prefixes of the release's tensors that query encoders need.
        video_prefixes: Name prefixes of the release's tensors that video encoders need.
    """

    kind: str
    query_encoder: type[QueryEncoder]
    video_encoder: type[FamilyVideoEncoder]
    query_prefixes: tuple[str, ...]
    video_prefixes: tuple[str, ...]
