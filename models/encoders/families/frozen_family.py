"""Family of the frozen backbone: no weights are learned, so both query modes are equal and no vector ever changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from models.encoders.encoder_family import EncoderFamily, FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoder
from models.encoders.tower_forward import encode_texts
from models.releases.release_state import ReleaseState


class FrozenQueryEncoder(QueryEncoder):
    """Encodes texts with the backbone alone."""

    modes = ("latest", "pinned")

    def is_task_independent(self, mode: str) -> bool:
        return True

    def encoding_identity(self, task: str, mode: str) -> str | None:
        return self._backbone.fingerprint

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._backbone, ids)


class FrozenVideoEncoder(FamilyVideoEncoder):
    """Encodes frames with the backbone alone."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        return self._encode_with_backbone


FROZEN_FAMILY = EncoderFamily(
    kind="frozen",
    query_encoder=FrozenQueryEncoder,
    video_encoder=FrozenVideoEncoder,
    query_prefixes=(),
    video_prefixes=(),
)
