"""Replay: a small memory of pairs from past tasks, which every step learns from again.

Three rules fill the memory. ``ring`` (Chaudhry et al. 2019, "On tiny episodic memories in continual learning") gives
every task an equal share, which is filled at the end of the task and cut when the next task joins. ``herding`` differs
from it only in the pairs that make up a share: *mean of features* in ctp (section 5.1), the herding of iCaRL (Rebuffi
et al. 2017, algorithm 4). ``reservoir`` (Vitter 1985, algorithm R) keeps every training pair so far with the same
probability, and is updated during training. The memory is part of the release, since old video files may be gone.

Differences from the papers: the ring in Chaudhry et al. has a share per class, knows the number of classes and keeps
the last pairs in a stream. Here shares are per task, the number of tasks is unknown, and the kept pairs are random;
except in a reservoir, a video's second caption is kept only after one caption of every video. Pairs from the current
task are never sampled, so replay covers only past tasks. The baselines in bmu-moco train with momentum encoders, queues
and color-jittered frames; here they extend plain fine-tuning like every baseline. A pair's feature is the joined unit
vector of its text and its video (ctp's published code takes the output of its multi-modal encoder).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair, load_examples


def pair_features(queries: Tensor, videos: Tensor) -> Tensor:
    """Join unit query and video vectors ``[n, dim]`` into unit features ``[n, 2 dim]`` of pairs.

    The inner product of two features is the mean of both modalities' cosines.
    """
    return torch.cat([queries, videos], dim=-1) / 2**0.5


def herding_order(features: Tensor, count: int) -> list[int]:
    """Select the pairs whose running mean stays nearest to the mean of all pairs (iCaRL, algorithm 4).

    Pair k minimizes ``|μ − (φ(p_k) + Σ_{j<k} φ(p_j)) / k|``; for unit features φ ``[n, d]``, this is the pair with the
    largest inner product with ``k μ − Σ_{j<k} φ(p_j)``. Every prefix of the result is the selection for fewer pairs.
    """
    mean, chosen_sum = features.mean(dim=0), torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool, device=features.device)
    order: list[int] = []
    for k in range(1, min(count, len(features)) + 1):
        scores = features @ (k * mean - chosen_sum)
        best = int(scores.masked_fill(~free, -torch.inf).argmax())
        free[best] = False
        chosen_sum += features[best]
        order.append(best)
    return order


FillRule = Literal["ring", "herding", "reservoir"]
#: Columns ``frames``, ``ids``, ``tasks`` and those of a method; one row per pair in each.
MemoryRows = dict[str, Tensor]
_PREFIX = "memory."


class MemoryConfig(FinetuneConfig):
    """Settings of every method with a memory."""

    memory: int = Field(default=64, ge=1, le=100_000)  # pairs in the memory, over all past tasks
    # ring: equal shares per task of random pairs, filled at the end of a task; herding: of the pairs with the task's
    # mean feature (MoF); reservoir: every pair so far with equal probability, filled during training
    fill: FillRule = "ring"


class ReplayConfig(MemoryConfig):
    """Settings of the methods that draw a separate batch from the memory."""

    replay_batch: int = Field(default=8, ge=1, le=1024)  # pairs from the memory in every step


class ReplayMemory:
    """At most ``capacity`` pairs, in main memory; columns without rows ``[0, ...]`` define types and shapes."""

    def __init__(self, capacity: int, empty: MemoryRows) -> None:
        self.capacity = capacity
        self.seen = 0
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
        selected = torch.cat(
            [
                (joined["tasks"] == task).nonzero().flatten()[: share + (index >= len(tasks) - rest)]
                for index, task in enumerate(tasks)
            ]
        )
        self._replace({name: rows[selected] for name, rows in joined.items()})

    def add_to_reservoir(self, new: MemoryRows) -> None:
        """Offer the pairs of a step in order; the n-th overall enters with probability capacity / n."""
        for index in range(len(new["tasks"])):
            self.seen += 1
            slot = self._filled
            if slot < self.capacity:
                self._filled += 1
            else:
                slot = int(torch.randint(self.seen, ()))
            if slot < self.capacity:
                for name, rows in self._rows.items():
                    rows[slot] = new[name][index]

    def sample(self, count: int, *, before: int) -> MemoryRows | None:
        """Draw up to ``count`` distinct random pairs of tasks with a smaller number; None if there are none."""
        past = (self.rows()["tasks"] < before).nonzero().flatten()
        if not len(past):
            return None
        chosen = past[torch.randperm(len(past))[:count]]
        return {name: rows[chosen] for name, rows in self._rows.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Collect the contents for a release, by name."""
        return {**self.rows(), "seen": torch.tensor(self.seen)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`tensors` returned."""
        self._replace({name: tensors[name] for name in self._rows})
        self.seen = int(tensors["seen"])

    def _replace(self, rows: MemoryRows) -> None:
        self._filled = len(rows["tasks"])
        for name, values in rows.items():
            self._rows[name][: self._filled] = values


class ReplayMethod(Finetune):
    """Fine-tuning of both towers with a memory of past pairs; a subclass defines how the loss uses them."""

    needs_frames = True  # the memory stores them

    config_class: ClassVar[type[MemoryConfig]] = MemoryConfig
    config: MemoryConfig
    architecture_settings: ClassVar[tuple[str, ...]] = ("memory", "fill")
    stores_vectors: ClassVar[bool] = False  # whether the memory stores a pair's vectors at the time it enters
    needs_previous_model: ClassVar[bool] = False

    def __init__(self, backbone: Backbone, config: MemoryConfig) -> None:
        super().__init__(backbone, config)
        empty = {
            "frames": torch.empty(0, backbone.spec.frames, *backbone.spec.shape, 3, dtype=torch.uint8),
            "ids": torch.empty(0, self._text_length(), dtype=torch.int64),
            "tasks": torch.empty(0, dtype=torch.int64),
        }
        if self.stores_vectors:
            empty |= {"queries": torch.empty(0, backbone.dim), "videos": torch.empty(0, backbone.dim)}
        self.memory = ReplayMemory(config.memory, empty)
        # From before the current task, frozen; if there are past pairs.
        self.previous_model: Backbone | None = None
        self._step_rows: MemoryRows | None = None

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Copy the model from before the task, for a method that needs it."""
        super().begin_task(task_id, name, trained=trained)
        if self.needs_previous_model and trained and len(self.memory):
            self.previous_model = self.model.clone().requires_grad_(False)

    def after_step(self) -> None:
        """Offer the pairs of this step to the reservoir."""
        super().after_step()
        if self.config.fill == "reservoir" and self._step_rows is not None:
            self.memory.add_to_reservoir(self._step_rows)
        self._step_rows = None

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Add the task's share to the ring."""
        super().end_task(pairs)
        self._step_rows = self.previous_model = None
        if self.config.fill != "reservoir" and pairs:
            self._fill_ring(pairs)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Compute token IDs ``[n, L]``, padded to one length for all texts, so that they can be stored and joined."""
        ids = self.model.tokenize(texts)
        padded = ids.new_zeros(len(ids), self._text_length())
        padded[:, : ids.shape[1]] = ids
        return padded

    def encode_ids(self, ids: Tensor, model: Backbone | None = None) -> Tensor:
        """Compute unit query vectors ``[B, dim]`` of token IDs ``[B, L]``, with the trained model by default."""
        return encode_texts(model or self.model, self.trim(ids))[0]

    def trim(self, ids: Tensor) -> Tensor:
        """Cut token IDs ``[B, L]`` after the end of the longest text."""
        return ids[:, : int(self.model.end_of_text(ids).max()) + 1]

    def encode(self, frames: Tensor, ids: Tensor, model: Backbone | None = None) -> tuple[Tensor, Tensor]:
        """Compute unit query and video vectors like :meth:`embed`, from token IDs ``[B, L]``."""
        model = model or self.model
        return self.encode_ids(ids, model), encode_frames(model, frames)[0]

    @torch.no_grad()
    def encode_as_before(self, frames: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the vectors like :meth:`encode`, with the model from before the task."""
        return self.encode(frames, ids, self.previous_model)

    def record_batch(self, frames: Tensor, ids: Tensor, vectors: tuple[Tensor, Tensor] | None = None) -> None:
        """Record a step's pairs before mixing or augmentation, and stored vectors, for the reservoir."""
        self._step_rows = self._rows(frames, ids, vectors)

    def sample_past(self, count: int, device: torch.device) -> MemoryRows | None:
        """Draw up to ``count`` pairs from past tasks, on the device; None if there are none."""
        rows = self.memory.sample(count, before=len(self.learned_tasks))
        return rows and {name: values.to(device) for name, values in rows.items()}

    def union_batch(self, frames: Tensor, texts: Sequence[str], count: int) -> tuple[Tensor, Tensor]:
        """Record a step's pairs, and append up to ``count`` pairs from past tasks to their frames and token IDs."""
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        past = self.sample_past(count, frames.device)
        if past is None:
            return frames, ids
        return torch.cat([frames, past["frames"]]), torch.cat([ids.to(frames.device), past["ids"]])

    def state_dict(self) -> dict[str, Tensor]:
        memory = {_PREFIX + name: tensor for name, tensor in self.memory.tensors().items()}
        return super().state_dict() | memory

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        memory = {name: t for name, t in tensors.items() if name.startswith(_PREFIX)}
        super().load_state_dict({name: t for name, t in tensors.items() if name not in memory})
        self.memory.load_tensors({name.removeprefix(_PREFIX): t for name, t in memory.items()})

    def _text_length(self) -> int:
        return int(self.model.text.positional_embedding.shape[0])

    def _rows(self, frames: Tensor, ids: Tensor, vectors: tuple[Tensor, Tensor] | None) -> MemoryRows:
        rows = {"frames": frames, "ids": ids, "tasks": torch.full((len(ids),), len(self.learned_tasks))}
        if vectors is not None:
            rows |= {"queries": vectors[0].detach(), "videos": vectors[1].detach()}
        return rows

    @torch.no_grad()
    def _fill_ring(self, pairs: Sequence[Pair]) -> None:
        chosen = self._select_pairs(pairs, self.memory.next_task_share())
        parts = []
        for frames, texts in load_examples(chosen, self.config.batch_size):
            ids = self.tokenize(texts)
            parts.append(self._rows(frames, ids, self.encode(frames, ids) if self.stores_vectors else None))
        self.memory.add_to_ring({name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def _select_pairs(self, pairs: Sequence[Pair], count: int) -> list[Pair]:
        """Select up to ``count`` pairs by the fill rule: first one random caption of every video, then a second."""
        seed = self.config.seed + len(self.learned_tasks)
        captions: Counter[int] = Counter()  # per video, in the shuffled order
        rounds: defaultdict[int, list[Pair]] = defaultdict(list)
        for i in torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)):
            video = pairs[i].clip.vector_id
            rounds[captions[video]].append(pairs[i])
            captions[video] += 1
        chosen: list[Pair] = []
        for candidates in rounds.values():
            if len(chosen) < count:
                chosen += self._order_pairs(candidates, count - len(chosen))
        return chosen

    def _order_pairs(self, pairs: Sequence[Pair], count: int) -> Sequence[Pair]:
        if self.config.fill == "ring":
            return pairs[:count]
        batches = load_examples(pairs, self.config.batch_size)
        features = torch.cat([pair_features(*self.encode(f, self.tokenize(t))) for f, t in batches])
        return [pairs[i] for i in herding_order(features, count)]
