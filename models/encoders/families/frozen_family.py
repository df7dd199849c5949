"""The family of the frozen backbone, without learned weights. It imports no torch for queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from models.backbones.backbone_description import TokenIds
from models.backbones.query_backbone import Vectors
from models.encoders.encoder_registry import EncoderFamily
from models.encoders.query_encoder import QueryEncoder

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone
    from models.encoders.family_video_encoder import FamilyVideoEncoder


class FrozenQueryEncoder(QueryEncoder):
    """Encodes texts with the backbone alone."""

    modes = ("latest", "pinned")

    def is_task_independent(self, mode: str) -> bool:
        return True

    def encoding_identity(self, task: str, mode: str) -> str | None:
        return self._texts.fingerprint

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        self._positions(tasks, mode)
        vectors = self.encode_with_backbone(texts)
        return np.repeat(vectors[:, None], len(tasks), axis=1)

    def encode_pairs(self, texts: Sequence[TokenIds], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        self._positions(tasks, mode)
        return self._texts.encode_alone(texts)


def _open_video_encoder(backbone: Backbone) -> FamilyVideoEncoder:
    from models.encoders.family_video_encoder import FrozenVideoEncoder

    return FrozenVideoEncoder(backbone)


FROZEN_FAMILY = EncoderFamily(
    kind="frozen",
    query_encoder=FrozenQueryEncoder,
    video_encoder=_open_video_encoder,
    query_prefixes=(),
    video_prefixes=(),
)
