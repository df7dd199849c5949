"""Replay: a small memory of the pairs of past tasks, which every step learns from again.

Two rules say which pairs are kept. ``ring`` (Chaudhry et al. 2019, "On tiny episodic memories in continual
learning") gives every task an equal share, filled at its end and cut when the next one comes. ``reservoir``
(Vitter 1985, "Random sampling with a reservoir"; algorithm R) keeps every pair that ever passed with the same
probability, while the tasks are being learned. The memory is part of the release, since old videos may be
gone from disk: it grows up to its capacity and no further.

What differs: the ring of Chaudhry et al. has a place per class, knows their number beforehand and keeps the
last ones of a stream; ours has a share per task, does not know, and draws at random as a shuffled stream would
end, a second caption of a video only after one of each. A reservoir also holds pairs of the task that is being
learned; they are not drawn, so that replay is of past tasks alone. The baselines of bmu-moco learn with
momentum encoders and queues, on colour-jittered frames; ours stand on plain fine-tuning like every baseline
here, so that they differ from it by their own mechanism alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair, load_examples

__all__ = ["Fill", "Memory", "MemoryConfig", "Replay", "ReplayConfig", "Rows"]

Fill = Literal["ring", "reservoir"]
Rows = dict[str, Tensor]  # ``frames``, ``ids``, ``tasks`` and what a method adds, one row per pair in each
_PREFIX = "memory."


class MemoryConfig(FinetuneConfig):
    """Settings of every method with a memory."""

    memory: int = Field(default=64, ge=1, le=100_000, description="pairs kept, of all past tasks together")
    fill: Fill = Field(
        default="ring", description="how the memory is filled: see trainer.methods.shared.replay"
    )


class ReplayConfig(MemoryConfig):
    """Settings of the methods that draw a batch of its own from the memory."""

    replay_batch: int = Field(default=8, ge=1, le=1024, description="pairs from the memory in every step")


class Memory:
    """At most ``capacity`` pairs, in main memory.

    Args:
        capacity: pairs to keep.
        empty: the tensors that hold them, ``[0, ...]`` each.

    Attributes:
        seen: pairs that have passed a reservoir, kept or not.
    """

    def __init__(self, capacity: int, empty: Rows) -> None:
        self.capacity = capacity
        self.seen = 0
        self._filled = 0
        self._rows = {name: rows.new_zeros(capacity, *rows.shape[1:]) for name, rows in empty.items()}

    def __len__(self) -> int:
        return self._filled

    def rows(self) -> Rows:
        """All pairs, ``[len, ...]`` each."""
        return {name: rows[: self._filled] for name, rows in self._rows.items()}

    def next_share(self) -> int:
        """How many pairs of one more task a ring takes."""
        return -(-self.capacity // (len(self.rows()["tasks"].unique()) + 1))

    def add_to_ring(self, new: Rows) -> None:
        """Add the pairs of a task, and cut all tasks to equal shares.

        What does not divide evenly goes to the newest tasks, one pair each. With more tasks than capacity the
        oldest are given up.
        """
        joined = {name: torch.cat([rows, new[name].to(rows)]) for name, rows in self.rows().items()}
        tasks = joined["tasks"].unique()  # sorted: in the order they were learned
        share, rest = divmod(self.capacity, len(tasks))
        kept = torch.cat(
            [
                (joined["tasks"] == task).nonzero().flatten()[: share + (position >= len(tasks) - rest)]
                for position, task in enumerate(tasks)
            ]
        )
        self._replace({name: rows[kept] for name, rows in joined.items()})

    def pass_reservoir(self, new: Rows) -> None:
        """Let pairs pass by, in order: the n-th of all takes a place with probability capacity / n."""
        for index in range(len(new["tasks"])):
            self.seen += 1
            place = self._filled
            if place < self.capacity:
                self._filled += 1
            else:
                place = int(torch.randint(self.seen, ()))
            if place < self.capacity:
                for name, rows in self._rows.items():
                    rows[place] = new[name][index]

    def sample(self, count: int, *, before: int) -> Rows | None:
        """Up to ``count`` different pairs of the tasks before number ``before``; None when there are none."""
        past = (self.rows()["tasks"] < before).nonzero().flatten()
        if not len(past):
            return None
        chosen = past[torch.randperm(len(past))[:count]]
        return {name: rows[chosen] for name, rows in self._rows.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that a release keeps, by name."""
        return {**self.rows(), "seen": torch.tensor(self.seen)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
        self._replace({name: tensors[name] for name in self._rows})
        self.seen = int(tensors["seen"])

    def _replace(self, rows: Rows) -> None:
        self._filled = len(rows["tasks"])
        for name, values in rows.items():
            self._rows[name][: self._filled] = values


class Replay(Finetune):
    """Fine-tuning of both towers with a memory of past pairs; what is done with it is up to the method."""

    config_class: ClassVar[type[MemoryConfig]] = MemoryConfig
    config: MemoryConfig
    architecture_settings = ("memory", "fill")
    keeps_vectors: ClassVar[bool] = False  # store the vectors of a pair beside it, as they are at that time

    def __init__(self, backbone: Backbone, config: MemoryConfig) -> None:
        super().__init__(backbone, config)
        frames, size = backbone.spec
        empty = {
            "frames": torch.empty(0, frames, size, size, 3, dtype=torch.uint8),
            "ids": torch.empty(0, self._text_length(), dtype=torch.int64),
            "tasks": torch.empty(0, dtype=torch.int64),
        }
        if self.keeps_vectors:
            empty |= {"queries": torch.empty(0, backbone.dim), "videos": torch.empty(0, backbone.dim)}
        self.memory = Memory(config.memory, empty)
        self._passing: Rows | None = None

    # -- hooks ------------------------------------------------------------------------------------------

    def after_step(self) -> None:
        """The pairs of this step pass the reservoir."""
        if self.config.fill == "reservoir" and self._passing is not None:
            self.memory.pass_reservoir(self._passing)
        self._passing = None

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """The task's share enters the ring."""
        super().end_task(pairs)
        self._passing = None
        if self.config.fill == "ring" and pairs:
            self._fill_ring(pairs)

    # -- for methods ------------------------------------------------------------------------------------

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Token ids ``[n, L]`` of one length for all texts, so that they can be stored and joined."""
        ids = self.model.tokenize(texts)
        padded = ids.new_zeros(len(ids), self._text_length())
        padded[:, : ids.shape[1]] = ids
        return padded

    def encode_ids(self, ids: Tensor, model: Backbone | None = None) -> Tensor:
        """Unit query vectors ``[B, dim]`` of token ids ``[B, L]``, of the online model or of another one."""
        model = model or self.model
        longest = int(model.end_of_text(ids).max()) + 1
        return encode_texts(model, ids[:, :longest])[0]

    def encode(self, frames: Tensor, ids: Tensor, model: Backbone | None = None) -> tuple[Tensor, Tensor]:
        """As :meth:`embed`, of token ids ``[B, L]``."""
        model = model or self.model
        return self.encode_ids(ids, model), encode_frames(model, frames)[0]

    def notice(self, frames: Tensor, ids: Tensor, vectors: tuple[Tensor, Tensor] | None = None) -> None:
        """Say what a step learns from, for the reservoir.

        Args:
            frames, ids: as the loop gave them, before any mixing or distortion.
            vectors: queries and videos, for methods that keep them.
        """
        self._passing = self._rows(frames, ids, vectors)

    def recall(self, count: int, device: torch.device) -> Rows | None:
        """Up to ``count`` pairs of past tasks, on the device."""
        rows = self.memory.sample(count, before=len(self.learned_tasks))
        return rows and {name: values.to(device) for name, values in rows.items()}

    def with_past(self, frames: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """A batch and, after it, up to ``count`` pairs of past tasks."""
        past = self.recall(count, frames.device)
        if past is None:
            return frames, ids
        return torch.cat([frames, past["frames"]]), torch.cat([ids.to(frames.device), past["ids"]])

    # -- training ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        memory = {_PREFIX + name: tensor for name, tensor in self.memory.tensors().items()}
        return super().state_dict() | memory

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        kept = {name: t for name, t in tensors.items() if name.startswith(_PREFIX)}
        super().load_state_dict({name: t for name, t in tensors.items() if name not in kept})
        self.memory.load_tensors({name.removeprefix(_PREFIX): t for name, t in kept.items()})

    # -- inside -----------------------------------------------------------------------------------------

    def _text_length(self) -> int:
        return int(self.model.text.positional_embedding.shape[0])

    def _rows(self, frames: Tensor, ids: Tensor, vectors: tuple[Tensor, Tensor] | None) -> Rows:
        rows = {"frames": frames, "ids": ids, "tasks": torch.full((len(ids),), len(self.learned_tasks))}
        if vectors is not None:
            rows |= {"queries": vectors[0].detach(), "videos": vectors[1].detach()}
        return rows

    @torch.no_grad()
    def _fill_ring(self, pairs: Sequence[Pair]) -> None:
        generator = torch.Generator().manual_seed(self.config.seed + len(self.learned_tasks))
        shuffled = [pairs[i] for i in torch.randperm(len(pairs), generator=generator)]
        times: Counter[int] = Counter()
        turns = []  # how often a pair's video came before it
        for pair in shuffled:
            turns.append(times[pair.clip.vector_id])
            times[pair.clip.vector_id] += 1
        order = sorted(range(len(shuffled)), key=turns.__getitem__)
        chosen = [shuffled[i] for i in order[: self.memory.next_share()]]
        parts = []
        for frames, texts in load_examples(chosen, self.config.batch_size):
            ids = self.tokenize(texts)
            parts.append(self._rows(frames, ids, self.encode(frames, ids) if self.keeps_vectors else None))
        self.memory.add_to_ring({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
