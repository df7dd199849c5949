"""Family of progressive neural networks: every shard is encoded and queried by the column of its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.rivals.encoders.progressive_tower import (
    NO_COLUMN,
    ProgressiveTower,
    encode_frames_with_column,
    encode_texts_with_columns,
)
from models.encoders.encoder_family import EncoderFamily, FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs, adapter_identity
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState, tensors_with_prefix

TEXT_PREFIX = "pnn.text."  # of the names of text columns in a release
VISUAL_PREFIX = "pnn.visual."
TASK_COLUMNS = "pnn.tasks"  # name of the tensor with the column of every task


class ProgressiveQueryEncoder(QueryEncoder):
    """The column of each task, or the newest column for all tasks.

    Columns never change, so that the newest release has the text columns of every shard's release.
    """

    modes = ("latest", "pinned")

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        release = inputs.release
        # Lateral connections run between whole blocks with their own attention, so the tower cannot be packed.
        self._uses_mixed_precision = inputs.backbone.query_precision == "bfloat16"
        self._tower = ProgressiveTower(inputs.backbone, is_visual=False)
        self._tower.load_tensors(tensors_with_prefix(TEXT_PREFIX, release.tensors))
        self._tower.freeze()
        if TASK_COLUMNS not in release.tensors or len(release.tensors[TASK_COLUMNS]) != len(self.tasks):
            raise ReleaseError(f"the release does not have one number of a column per task ({TASK_COLUMNS})")
        self._columns: list[int] = release.tensors[TASK_COLUMNS].tolist()

    @property
    def pinned_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tower.tensors().values())

    def is_task_independent(self, mode: str) -> bool:
        return mode == "latest"

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        column = self._columns[self._position[task]]
        if column == NO_COLUMN:
            return self._backbone.fingerprint
        tensors = self._tower.tensors().items()
        used = {name: tensor for name, tensor in tensors if int(name.partition(".")[0]) <= column}
        return adapter_identity([self._backbone.fingerprint, column], used)

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        columns = [self._columns[-1]] if mode == "latest" else [self._columns[p] for p in positions]
        return encode_texts_with_columns(self._tower, ids, columns)

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        if mode == "latest":
            return self.encode_for_tasks(ids, (), mode)[0]
        requested: list[int] = positions.tolist()
        distinct = sorted(set(requested))
        vectors = self.encode_for_tasks(ids, distinct, mode)
        return torch.stack([vectors[distinct.index(p), row] for row, p in enumerate(requested)])


class ProgressiveVideoEncoder(FamilyVideoEncoder):
    """The newest image column of the release."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        # Tensors made in inference mode could not be overwritten outside it.
        with torch.inference_mode(False):
            tower = ProgressiveTower(self._backbone, is_visual=True)
            tower.load_tensors(tensors_with_prefix(VISUAL_PREFIX, release.tensors))
            tower.freeze()
        newest = len(tower) - 1 if len(tower) else NO_COLUMN
        return lambda frames: encode_frames_with_column(tower, frames, newest)


PROGRESSIVE_FAMILY = EncoderFamily(
    kind="progressive",
    query_encoder=ProgressiveQueryEncoder,
    video_encoder=ProgressiveVideoEncoder,
    query_prefixes=(TEXT_PREFIX, TASK_COLUMNS),
    video_prefixes=(VISUAL_PREFIX,),
)
