"""Base-MoCo: cross-modal momentum contrast (bmu-moco, sections 3.2 and 3.3, equations 7 to 11).

Beside the encoders f_θ stands a pair of momentum encoders f_θm, which follow them slowly (eq. 8) and make the
keys: a query is to be nearer to its own key than to the keys of earlier steps, which wait in queues (eqs. 10
and 11). Every task begins with momentum encoders that are copies of the encoders (algorithm 1, line 20), and
ends with the epoch whose encoders found most of the task's ``val`` videos at rank 1 (section 4.1); among equals
the latest, and so the last epoch when there are no such videos. The queues are never emptied: a task's first
negatives are keys of the task before.

What the paper leaves open: vectors and keys have unit length; the keys of a step's other pairs are not its
negatives, as equation 10 reads; momentum encoders see the same frames as the encoders.

What differs from the paper: frames are not augmented (gray-scaling would take away what captions say), they
are the same of a video in every epoch, and gradients are clipped, as for every method. A CLIP backbone takes a
text's vector from its last token instead of a mean over tokens. Queues know nothing of videos: earlier keys of a
query's own video count as negatives. So they do in the paper, but its tasks are a hundred times larger; on small
ones a queue should hold no more keys than a task has videos.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.methods.shared.key_queues import KeyQueues
from trainer.task_data import Clip, Pair, load_frames

__all__ = ["BaseMoco", "BaseMocoConfig", "MomentumEncoders", "moco_loss"]

_TIE = 1e-6  # scores that are closer are equal, as in evaluation


class BaseMocoConfig(FinetuneConfig):
    """Settings of Base-MoCo; defaults are those of the paper, section 4.1."""

    logit_scale: float = Field(default=1 / 0.07, gt=0, le=1000, description="1/τ of equations 10 and 11")
    momentum: float = Field(default=0.99, ge=0, le=1, description="m of equation 8")
    queue: int = Field(default=1440, ge=1, le=1_000_000, description="N_Q, keys of either kind in a queue")


class MomentumEncoders(nn.Module):
    """A pair of momentum encoders (video and text) and the queues of their keys.

    Args:
        encoders: what they start as a copy of.
        length: of the queues.
    """

    def __init__(self, encoders: Backbone, length: int) -> None:
        super().__init__()
        self.encoders = encoders.clone().requires_grad_(False)
        self.queues = KeyQueues(length, encoders.dim).to(encoders.device)

    def tensors(self) -> dict[str, Tensor]:
        """Weights (``clip.…``) and queues (``queues.…``) by name."""
        queues = {f"queues.{name}": tensor for name, tensor in self.queues.state_dict().items()}
        return {**self.encoders.tensors(), **queues}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
        self.encoders.load_tensors({name: t for name, t in tensors.items() if not name.startswith("queues.")})
        self.queues.load_state_dict(under("queues.", tensors))


class BaseMoco(Finetune):
    """Both towers, trained against keys of momentum encoders."""

    name = "base_moco"
    config_class = BaseMocoConfig
    config: BaseMocoConfig
    architecture_settings: ClassVar[tuple[str, ...]] = ("queue",)

    def __init__(self, backbone: Backbone, config: BaseMocoConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.momentum = {name: MomentumEncoders(self.model, config.queue) for name in self.pairs()}
        self.training = False
        self._keys: list[tuple[Tensor, Tensor]] = []
        self._best: dict[str, Tensor] = {}
        self._best_recall = 0.0

    def pairs(self) -> tuple[str, ...]:
        """The pairs of momentum encoders: ``local`` starts anew with every task, ``global`` never."""
        return ("local",)

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self.training = trained

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """L_V2T + L_T2V (eq. 18) of equations 10 and 11."""
        queries, videos = self.embed(frames, texts)  # q^T, q^V of eq. 7
        with torch.no_grad():  # k^T, k^V of eqs. 9 and 15
            self._keys = [self.embed(frames, texts, pair.encoders) for pair in self.momentum.values()]
        count = self.contrasted()
        text_keys, video_keys = (torch.stack(keys) for keys in zip(*self._keys[:count], strict=True))
        queues = [pair.queues for pair in self.momentum.values()][:count]
        scale = self.config.logit_scale
        to_text = moco_loss(videos, text_keys, torch.cat([q.texts for q in queues]), scale)
        to_video = moco_loss(queries, video_keys, torch.cat([q.videos for q in queues]), scale)
        return to_text + to_video

    def contrasted(self) -> int:
        """How many of the pairs, from the first, the loss contrasts with."""
        return len(self.momentum)

    @torch.no_grad()
    def after_step(self) -> None:
        """The momentum encoders follow; then this step's keys join the queues (algorithm 1, lines 14 to 18)."""
        for pair in self.momentum:
            self.follow(pair)
        self.enqueue()

    def follow(self, pair: str) -> None:
        """θ_m ← m θ_m + (1 − m) θ (eq. 8, and eq. 14 of the global pair)."""
        for trained, kept in self.weights(pair):
            kept.lerp_(trained, 1 - self.config.momentum)

    def enqueue(self) -> None:
        """This step's keys, if it had a loss, replace the oldest ones."""
        for pair, keys in zip(self.momentum.values(), self._keys, strict=False):
            pair.queues.push(*keys)
        self._keys = []

    def after_epoch(self, validation: Sequence[Clip]) -> None:
        """Keep everything as it is now, if the encoders find at least as much as after any epoch before."""
        recall = self.validation_recall(validation)
        if recall is not None and recall >= self._best_recall:
            self._best_recall = recall
            self._best = {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Back to the best epoch; the local momentum encoders start anew (algorithm 1, line 20)."""
        if self.training:
            self.restore_best()
            self.restart_local()
        super().end_task(pairs)
        self.training = False

    def restore_best(self) -> None:
        """The state after the best epoch; that after the last one, where none was measured."""
        if self._best:
            self.load_tensors(self._best)
        self._best, self._best_recall = {}, 0.0

    def restart_local(self) -> None:
        """θ_m ← θ."""
        if "local" in self.momentum:
            self.momentum["local"].encoders.load_tensors(self.model.tensors())

    # -- state ------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """What a step reads and changes: encoders, momentum encoders, queues."""
        momentum = {
            f"{name}.{tensor_name}": tensor
            for name, pair in self.momentum.items()
            for tensor_name, tensor in pair.tensors().items()
        }
        return {**self.model.tensors(), **momentum}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave; local momentum encoders that are not there are the encoders."""
        self.model.load_tensors({name: t for name, t in tensors.items() if name.startswith("clip.")})
        for name, pair in self.momentum.items():
            restarted = self.model.tensors() if name == "local" else {}
            pair.load_tensors({**restarted, **under(f"{name}.", tensors)})

    def state_dict(self) -> dict[str, Tensor]:
        """In a task also its best epoch; between tasks without the local encoders, then equal to the encoders."""
        tensors = self.tensors()
        if not self.training:
            return {name: t for name, t in tensors.items() if not name.startswith("local.clip.")}
        best = {f"best.{name}": tensor for name, tensor in self._best.items()}
        return {**tensors, **best, "best_recall": torch.tensor(self._best_recall, dtype=torch.float64)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_tensors(tensors)
        self._best = {name: tensor.to("cpu", copy=True) for name, tensor in under("best.", tensors).items()}
        self._best_recall = float(tensors.get("best_recall", 0.0))

    # -- inside -----------------------------------------------------------------------------------------

    def weights(self, pair: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Every weight that is trained, with its momentum counterpart."""
        momentum = self.momentum[pair].encoders.parameters()
        for trained, kept in zip(self.model.parameters(), momentum, strict=True):
            if trained.requires_grad:
                yield trained, kept

    @torch.inference_mode()
    def validation_recall(self, clips: Sequence[Clip]) -> float | None:
        """Share of the clips' captions whose clip alone ranks first, 0..1; None without captions."""
        asked = [(place, caption) for place, clip in enumerate(clips) for caption in clip.captions]
        if not asked:
            return None
        size = self.config.batch_size
        videos = torch.cat(
            [
                self.encode_videos(load_frames(clips[start : start + size]))
                for start in range(0, len(clips), size)
            ]
        )
        found = 0
        for start in range(0, len(asked), size):
            places, captions = zip(*asked[start : start + size], strict=True)
            scores = encode_texts(self.model, self.model.tokenize(captions))[0] @ videos.T
            truth = torch.tensor(places, device=scores.device).unsqueeze(1)
            own = scores.gather(1, truth)
            others = scores.scatter(1, truth, -torch.inf)
            found += int((others < own - _TIE).all(dim=1).sum())
        return found / len(asked)


def moco_loss(vectors: Tensor, keys: Tensor, queue: Tensor, scale: float) -> Tensor:
    """Equations 10 and 11 with one pair of momentum encoders, 16 and 17 with two: one direction of contrast.

    −log of the share that a vector's own keys have in the sum over its own and all queued keys.

    Args:
        vectors: ``[B, D]``, of texts or of videos.
        keys: ``[P, B, D]``, of the other kind: P positives for each.
        queue: ``[N, D]``, of the other kind: negatives for all.
        scale: 1/τ.
    """
    positives = scale * torch.einsum("bd,pbd->bp", vectors, keys)
    negatives = scale * vectors @ queue.T
    share = positives.logsumexp(dim=1) - torch.cat([positives, negatives], dim=1).logsumexp(dim=1)
    return -share.mean()


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name begins with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
