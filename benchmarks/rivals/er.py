"""ER: experience replay (Chaudhry et al. 2019, "On tiny episodic memories in continual learning").

Every step learns from the union of the current batch and a batch from a small memory of past pairs (algorithm 1 takes
the gradient over both). With a contrastive loss, current and past pairs are also each other's negatives.

In a ring, every task has an equal share of the memory, which is filled at the end of the task and cut when the next
task joins. The memory is part of the release, since old video files may be gone.

Differences from the paper: its ring has a share per class, knows the number of classes and keeps the last pairs in a
stream. Here shares are per task, the number of tasks is unknown, and the kept pairs are random; a video's second
caption is kept only after one caption of every video. bmu-moco trains with momentum encoders, queues and color-jittered
frames; here replay extends plain fine-tuning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair, load_examples

#: Columns ``frames``, ``ids`` and ``tasks``, with one row per pair.
MemoryRows = dict[str, Tensor]
_PREFIX = "memory."


class ErConfig(FinetuneConfig):
    """Settings of experience replay."""

    memory: int = Field(default=64, ge=1, le=100_000, description="pairs in the memory, over all past tasks")
    replay_batch: int = Field(default=8, ge=1, le=1024, description="pairs from the memory in every step")


class ReplayMemory:
    """At most ``capacity`` pairs, in main memory.

    Args:
        empty: Columns without rows, ``[0, ...]`` each, which define types and shapes.
    """

    def __init__(self, capacity: int, empty: MemoryRows) -> None:
        self.capacity = capacity
        self._filled = 0
        self._rows = {name: rows.new_zeros(capacity, *rows.shape[1:]) for name, rows in empty.items()}

    def __len__(self) -> int:
        return self._filled

    def rows(self) -> MemoryRows:
        """Get all pairs, ``[len, ...]`` per column."""
        return {name: rows[: self._filled] for name, rows in self._rows.items()}

    def next_task_share(self) -> int:
        """Compute the ring's share for one more task, in pairs."""
        return -(-self.capacity // (len(self.rows()["tasks"].unique()) + 1))

    def add_to_ring(self, new: MemoryRows) -> None:
        """Add a task's pairs and cut all tasks to equal shares.

        The remainder of the division goes to the newest tasks, one pair each. With more tasks than capacity, the oldest
        lose all pairs.
        """
        joined = {name: torch.cat([rows, new[name].to(rows)]) for name, rows in self.rows().items()}
        tasks = joined["tasks"].unique()  # sorted, i.e. in order of learning
        share, rest = divmod(self.capacity, len(tasks))
        kept = torch.cat(
            [
                (joined["tasks"] == task).nonzero().flatten()[: share + (position >= len(tasks) - rest)]
                for position, task in enumerate(tasks)
            ]
        )
        self._replace({name: rows[kept] for name, rows in joined.items()})

    def sample(self, count: int, *, before: int) -> MemoryRows | None:
        """Draw up to ``count`` distinct random pairs; None if there are none.

        Args:
            before: Draw only pairs from tasks with a smaller number.
        """
        past = (self.rows()["tasks"] < before).nonzero().flatten()
        if not len(past):
            return None
        chosen = past[torch.randperm(len(past))[:count]]
        return {name: rows[chosen] for name, rows in self._rows.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Collect the contents for a release, by name."""
        return self.rows()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`tensors` returned."""
        self._replace({name: tensors[name] for name in self._rows})

    def _replace(self, rows: MemoryRows) -> None:
        self._filled = len(rows["tasks"])
        for name, values in rows.items():
            self._rows[name][: self._filled] = values


class Er(Finetune):
    """Fine-tuning of both towers on the union of a current and a past batch."""

    name = "er"
    config_class = ErConfig
    config: ErConfig
    needs_frames = True  # the memory stores them
    architecture_settings: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self, backbone: Backbone, config: ErConfig) -> None:
        super().__init__(backbone, config)
        frames, size = backbone.spec
        empty = {
            "frames": torch.empty(0, frames, size, size, 3, dtype=torch.uint8),
            "ids": torch.empty(0, self._text_length(), dtype=torch.int64),
            "tasks": torch.empty(0, dtype=torch.int64),
        }
        self.memory = ReplayMemory(config.memory, empty)

    # -- hooks ------------------------------------------------------------------------------------------

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        ids = self.tokenize(texts)
        past = self.memory.sample(self.config.replay_batch, before=len(self.learned_tasks))
        if past is not None:
            frames = torch.cat([frames, past["frames"].to(frames.device)])
            ids = torch.cat([ids, past["ids"]]).to(frames.device)
        return self.contrastive_loss(self.encode_ids(ids), encode_frames(self.model, frames)[0])

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Add the task's share to the ring."""
        super().end_task(pairs)
        if pairs:
            chosen = self._select_pairs(pairs, self.memory.next_task_share())
            examples = load_examples(chosen, self.config.batch_size)
            parts = [self._rows(frames, self.tokenize(texts)) for frames, texts in examples]
            self.memory.add_to_ring({name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Compute token IDs ``[n, L]``, padded to one length for all texts, so that they can be stored and joined."""
        ids = self.model.tokenize(texts)
        padded = ids.new_zeros(len(ids), self._text_length())
        padded[:, : ids.shape[1]] = ids
        return padded

    def encode_ids(self, ids: Tensor) -> Tensor:
        """Compute unit query vectors ``[B, dim]`` of token IDs ``[B, L]``."""
        return encode_texts(self.model, ids[:, : int(self.model.end_of_text(ids).max()) + 1])[0]

    # -- training ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        memory = {_PREFIX + name: tensor for name, tensor in self.memory.tensors().items()}
        return super().state_dict() | memory

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        memory = {name: t for name, t in tensors.items() if name.startswith(_PREFIX)}
        super().load_state_dict({name: t for name, t in tensors.items() if name not in memory})
        self.memory.load_tensors({name.removeprefix(_PREFIX): t for name, t in memory.items()})

    # -- internal ---------------------------------------------------------------------------------------

    def _text_length(self) -> int:
        return int(self.model.text.positional_embedding.shape[0])

    def _rows(self, frames: Tensor, ids: Tensor) -> MemoryRows:
        return {"frames": frames, "ids": ids, "tasks": torch.full((len(ids),), len(self.learned_tasks))}

    def _select_pairs(self, pairs: Sequence[Pair], count: int) -> list[Pair]:
        """Select up to ``count`` random pairs: first one caption of every video, then a second."""
        seed = self.config.seed + len(self.learned_tasks)
        captions: Counter[int] = Counter()  # per video, in the shuffled order
        ranked: list[tuple[int, Pair]] = []
        for i in torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)):
            video = pairs[i].clip.vector_id
            ranked.append((captions[video], pairs[i]))
            captions[video] += 1
        return [pair for _, pair in sorted(ranked, key=lambda one: one[0])[:count]]
