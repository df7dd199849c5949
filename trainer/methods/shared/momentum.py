"""Base-MoCo: cross-modal momentum contrast (bmu-moco, sections 3.2 and 3.3, equations 7 to 11).

A pair of momentum encoders f_θm follows the encoders f_θ slowly (eq. 8) and computes the keys. The loss contrasts a
query with its own key against the keys of earlier steps, which queues keep (eqs. 10 and 11). Every task starts with
momentum encoders that are copies of the encoders (algorithm 1, line 20). The result of a task is the epoch with the
highest Recall@1 on the task's ``val`` videos (section 4.1): the latest one if several tie, and the last epoch if there
are no such videos. The queues are never emptied, so a task's first negatives are keys of the previous task.

Choices that the paper leaves open: vectors and keys have unit length; as in equation 10, the keys of a step's other
pairs are not negatives; momentum encoders receive the same frames as the encoders.

Differences from the paper: frames are not augmented (grayscale would remove colors that captions mention), a video has
the same frames in every epoch, and gradients are clipped, as for every method. A CLIP backbone takes a text's vector
from the last token instead of a mean over tokens. Queues do not distinguish videos: earlier keys of a query's own video
count as negatives. The paper shares this: it is rare on most of its tasks (9,000 to 25,991 training videos) but not on
the last one (1,200 videos, and queues of 1,440 keys). On small tasks a queue should hold no more keys than the task has
videos.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from index.arrays import batches
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts
from models.releases.release_tensors import tensors_with_prefix
from trainer.evaluation.gallery import TIE_TOLERANCE
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Clip, Pair, load_frames


class KeyQueues(nn.Module):
    """Q^T and Q^V: ring buffers with the N_Q newest text and video keys.

    The buffers start with random unit vectors. Batches may have any size.
    """

    texts: Tensor  # keys, [length, dim]
    videos: Tensor
    oldest: Tensor  # row of the oldest key

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("texts", F.normalize(torch.randn(length, dim), dim=-1))
        self.register_buffer("videos", F.normalize(torch.randn(length, dim), dim=-1))
        self.register_buffer("oldest", torch.tensor(0))

    def push(self, texts: Tensor, videos: Tensor) -> None:
        """Replace the B oldest keys of both queues by text and video keys, both ``[B, dim]``."""
        length = len(self.texts)
        rows = (self.oldest + torch.arange(len(texts), device=texts.device)) % length
        self.texts[rows[-length:]] = texts[-length:]
        self.videos[rows[-length:]] = videos[-length:]
        self.oldest.copy_((rows[-1] + 1) % length)


class MomentumConfig(FinetuneConfig):
    """Settings of momentum contrast; the defaults are those of the paper, section 4.1."""

    logit_scale: float = Field(default=1 / 0.07, gt=0, le=1000)  # 1/τ of equations 10 and 11
    momentum: float = Field(default=0.99, ge=0, le=1)  # m of equation 8
    queue: int = Field(default=1440, ge=1, le=1_000_000)  # N_Q, keys per queue


class MomentumEncoders(nn.Module):
    """A pair of momentum encoders (video and text) with queues of their keys."""

    def __init__(self, encoders: Backbone, length: int) -> None:
        super().__init__()
        self.encoders = encoders.clone().requires_grad_(False)
        self.queues = KeyQueues(length, encoders.dim).to(encoders.device)

    def tensors(self) -> dict[str, Tensor]:
        """Collect weights (``clip.…``) and queues (``queues.…``) by name."""
        queues = {f"queues.{name}": tensor for name, tensor in self.queues.state_dict().items()}
        return {**self.encoders.tensors(), **queues}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of :meth:`tensors`."""
        self.encoders.load_tensors({name: t for name, t in tensors.items() if not name.startswith("queues.")})
        self.queues.load_state_dict(tensors_with_prefix("queues.", tensors))


class MomentumMethod(Finetune):
    """Fine-tuning of both towers against keys of momentum encoders, of which ``local`` is reset at every task,
    ``global`` never.
    """

    config_class = MomentumConfig
    config: MomentumConfig
    architecture_settings: ClassVar[tuple[str, ...]] = ("queue",)
    momentum_names: ClassVar[tuple[str, ...]] = ("local",)

    def __init__(self, backbone: Backbone, config: MomentumConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.momentum = {name: MomentumEncoders(self.model, config.queue) for name in self.momentum_names}
        self._keys: list[tuple[Tensor, Tensor]] = []
        self._best: dict[str, Tensor] = {}
        self._best_recall = 0.0

    # -- hooks ------------------------------------------------------------------------------------------

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute L_V2T + L_T2V (eq. 18), with both terms as in equations 10 and 11."""
        queries, videos = self.embed(frames, texts)  # q^T, q^V of eq. 7
        with torch.no_grad():  # k^T, k^V of eqs. 9 and 15
            self._keys = [self.embed(frames, texts, pair.encoders) for pair in self.momentum.values()]
        count = self.contrasted_pair_count()
        text_keys, video_keys = (torch.stack(keys) for keys in zip(*self._keys[:count], strict=True))
        queues = [pair.queues for pair in self.momentum.values()][:count]
        scale = self.config.logit_scale
        to_text = moco_loss(videos, text_keys, torch.cat([q.texts for q in queues]), scale)
        to_video = moco_loss(queries, video_keys, torch.cat([q.videos for q in queues]), scale)
        return to_text + to_video

    def contrasted_pair_count(self) -> int:
        """Count the leading pairs of momentum encoders whose keys enter the loss."""
        return len(self.momentum)

    @torch.no_grad()
    def after_step(self) -> None:
        """Update the momentum encoders, then enqueue this step's keys (algorithm 1, lines 14 to 18)."""
        for name in self.momentum:  # θ_m ← m θ_m + (1 − m) θ (local pair: eq. 8, global pair: eq. 14)
            trained, momentum = self.weight_pairs(name)
            torch._foreach_lerp_(momentum, trained, 1 - self.config.momentum)
        for pair, keys in zip(self.momentum.values(), self._keys, strict=False):
            pair.queues.push(*keys)
        self._keys = []

    def after_epoch(self, validation: Sequence[Clip]) -> None:
        """Keep the current state if no earlier epoch has a higher validation recall."""
        recall = self.validation_recall(validation)
        if recall is not None and recall >= self._best_recall:
            self._best_recall = recall
            self._best = {
                name: tensor.to("cpu", copy=True) for name, tensor in self.training_tensors().items()
            }

    def bytes_after_epoch(self, validation: Sequence[Clip]) -> int:
        is_kept = self.model.device.type == "cpu" and not self._best and any(c.captions for c in validation)
        return sum(tensor.nbytes for tensor in self.training_tensors().values()) if is_kept else 0

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Restore the best epoch and reset the local momentum encoders (algorithm 1, line 20)."""
        if self.is_training:
            if self._best:  # without validation videos, the last epoch is kept
                self.load_training_tensors(self._best)
            self._best, self._best_recall = {}, 0.0
            self.momentum["local"].encoders.load_tensors(self.model.tensors())
        super().end_task(pairs)

    # -- state ------------------------------------------------------------------------------------------

    def training_tensors(self) -> dict[str, Tensor]:
        """Collect what a training step reads and changes: encoders, momentum encoders, queues."""
        momentum = {
            f"{name}.{tensor_name}": tensor
            for name, pair in self.momentum.items()
            for tensor_name, tensor in pair.tensors().items()
        }
        return {**self.model.tensors(), **momentum}

    def load_training_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of :meth:`training_tensors`, with the encoders in place of a missing local pair."""
        self.model.load_tensors({name: t for name, t in tensors.items() if name.startswith("clip.")})
        for name, pair in self.momentum.items():
            default = self.model.tensors() if name == "local" else {}
            pair.load_tensors({**default, **tensors_with_prefix(f"{name}.", tensors)})

    def state_dict(self) -> dict[str, Tensor]:
        """Collect the state, which during a task includes its best epoch.

        Between tasks the local momentum encoders are left out, since they equal the encoders.
        """
        tensors = self.training_tensors()
        if not self.is_training:
            return {name: t for name, t in tensors.items() if not name.startswith("local.clip.")}
        best = {f"best.{name}": tensor for name, tensor in self._best.items()}
        return {**tensors, **best, "best_recall": torch.tensor(self._best_recall, dtype=torch.float64)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.load_training_tensors(tensors)
        self._best = {
            name: tensor.to("cpu", copy=True)
            for name, tensor in tensors_with_prefix("best.", tensors).items()
        }
        self._best_recall = float(tensors.get("best_recall", 0.0))

    # -- internal ---------------------------------------------------------------------------------------

    def weight_pairs(self, pair: str) -> tuple[list[Tensor], list[Tensor]]:
        """Collect the trained weights, and their counterparts in a pair of momentum encoders."""
        parameters = zip(self.model.parameters(), self.momentum[pair].encoders.parameters(), strict=True)
        pairs = [(trained, momentum) for trained, momentum in parameters if trained.requires_grad]
        return [trained for trained, _ in pairs], [momentum for _, momentum in pairs]

    @torch.inference_mode()
    def validation_recall(self, clips: Sequence[Clip]) -> float | None:
        """Compute the share of captions, 0..1, whose clip ranks first without ties; None without captions."""
        queries = [(row, caption) for row, clip in enumerate(clips) for caption in clip.captions]
        if not queries:
            return None
        size = self.config.batch_size
        videos = torch.cat([self.encode_videos(load_frames(chunk)) for chunk in batches(clips, size)])
        hits = 0
        for chunk in batches(queries, size):
            rows, captions = zip(*chunk, strict=True)
            scores = encode_texts(self.model, self.model.tokenize(captions))[0] @ videos.T
            truth = torch.tensor(rows, device=scores.device).unsqueeze(1)
            true_scores = scores.gather(1, truth)
            others = scores.scatter(1, truth, -torch.inf)
            hits += int((others < true_scores - TIE_TOLERANCE).all(dim=1).sum())
        return hits / len(queries)


def moco_loss(vectors: Tensor, keys: Tensor, queue: Tensor, scale: float) -> Tensor:
    """Compute one direction of the momentum contrast: equations 10 and 11 (P = 1), 16 and 17 (P = 2).

    The loss is −log of the share that a vector's own keys have in the sum over its own and all queued keys. The vectors
    ``[B, D]`` are those of texts or videos; the keys ``[P, B, D]``, P positives for each vector, and those in the queue
    ``[N, D]``, negatives for all vectors, are of the other modality.
    """
    positives = scale * torch.einsum("bd,pbd->bp", vectors, keys)
    negatives = scale * vectors @ queue.T
    share = positives.logsumexp(dim=1) - torch.cat([positives, negatives], dim=1).logsumexp(dim=1)
    return -share.mean()
