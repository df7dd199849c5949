"""PNN: progressive neural networks (Rusu et al. 2016), the method that grows with every task in table 4 of bmu-moco.

Every task trains a new column for both towers, and its lateral connections from the columns of all earlier tasks
(equation 2, ``encoders.progressive_family``). Earlier columns are frozen, so nothing is forgotten. Weights and the cost
of encoding grow with the number of tasks, lateral connections with its square.

Differences from the paper: columns are pre-trained towers, so a new column starts from the pre-trained weights rather
than random ones, and its lateral connections start without effect (one of their two matrices is zero). The layers in
equation 2 are transformer blocks; their lateral input is added to their output, a sum that the next block normalizes,
rather than to the argument of a nonlinearity. Embedding tokens or patches is the first layer; the last projection has
no lateral connections. The paper selects the column of a known task; here each shard is searched with its task's column
(pinned queries), and the router merges the shards. The loss is the other baselines' contrastive loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.encoders.progressive_family import (
    NO_COLUMN,
    PROGRESSIVE_FAMILY,
    TASK_COLUMNS,
    TEXT_PREFIX,
    VISUAL_PREFIX,
    ProgressiveTower,
    encode_frames_with_column,
    encode_texts_with_columns,
)
from models.backbones.backbone import Backbone
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix
from trainer.methods.base import Method, MethodConfig, in_task_loss
from trainer.task_data import Pair


class PnnConfig(MethodConfig):
    """Settings of progressive neural networks."""

    learning_rate: float = Field(default=1e-5, gt=0, le=1)


class Pnn(Method):
    """A column for both towers per task, with lateral connections from all earlier columns.

    Attributes:
        visual: The image tower's columns.
        text: The text tower's columns.
        task_columns: Each task's column number, or ``NO_COLUMN`` for the backbone.
    """

    name = "pnn"
    family = PROGRESSIVE_FAMILY
    config_class = PnnConfig
    config: PnnConfig

    def __init__(self, backbone: Backbone, config: PnnConfig) -> None:
        super().__init__(backbone, config)
        self.visual = ProgressiveTower(backbone, is_visual=True)
        self.text = ProgressiveTower(backbone, is_visual=False)
        self.task_columns: list[int] = []

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Add a column; a task without training uses the newest."""
        if trained:
            with torch.random.fork_rng():
                torch.manual_seed(self.config.seed + len(self.learned_tasks))
                self.visual.add_column()
                self.text.add_column()
        self.task_columns.append(len(self.text) - 1 if len(self.text) else NO_COLUMN)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        column = self.task_columns[-1]
        videos = encode_frames_with_column(self.visual, frames, column)
        queries = encode_texts_with_columns(self.text, self.backbone.tokenize(texts), [column])[0]
        return in_task_loss(queries, videos, self.config.logit_scale)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        self.visual.freeze()
        self.text.freeze()

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        trained = [*self.visual.newest_parameters(), *self.text.newest_parameters()]
        return [
            {"params": trained, "lr": self.config.learning_rate, "weight_decay": self.config.weight_decay}
        ]

    def state_dict(self) -> dict[str, Tensor]:
        parts = {VISUAL_PREFIX: self.visual, TEXT_PREFIX: self.text}
        tensors = {f"{prefix}{n}": t for prefix, part in parts.items() for n, t in part.tensors().items()}
        return tensors | {TASK_COLUMNS: torch.tensor(self.task_columns, dtype=torch.int64)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.visual.load_tensors(tensors_with_prefix(VISUAL_PREFIX, tensors))
        self.text.load_tensors(tensors_with_prefix(TEXT_PREFIX, tensors))
        self.task_columns = tensors[TASK_COLUMNS].tolist()

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        column = self.task_columns[-1] if self.task_columns else NO_COLUMN
        return encode_frames_with_column(self.visual, frames, column)

    def video_tensors(self) -> dict[str, Tensor]:
        return {f"{VISUAL_PREFIX}{name}": tensor for name, tensor in self.visual.tensors().items()}

    # -- internal ---------------------------------------------------------------------------------------

    def load_release(self, previous: ReleaseState) -> None:
        """Load a release; queries for a zero-shot release's shards are encoded by the backbone."""
        if previous.kind == FROZEN_FAMILY.kind:
            self.task_columns = [NO_COLUMN] * len(previous.tasks)
            return
        self.load_state_dict(tensors_with_prefix("", previous.tensors))
        self.end_task()
