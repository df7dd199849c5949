"""Base class for continual-learning methods.

The worker, the benchmarks and the tests drive every method through the same calls::

    method.begin_task(task_id, name)
    for epoch in epochs:  # the training loop owns optimizer, schedule and checkpoints
        method.begin_epoch(epoch, pairs)
        for frames, texts in batches:
            method.loss(frames, texts, references).backward()
            optimizer.step()
            method.after_step()
        method.after_epoch(validation_clips)
    method.end_task(pairs)
    method.record_task(task_id, name, captions)
    vectors = method.embed_videos(clips)  # written once, into the task's shard
    release = method.release()

Shapes: B pairs in a batch, M frames per video, H × W pixels, ``dim`` dimensions of the joint space.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from copy import deepcopy
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from index.arrays import Vectors
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import EncoderFamily, open_query_encoder
from models.encoders.frozen_families import FROZEN_FAMILY
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState, ReleaseTask, video_fingerprint
from models.releases.release_tensors import tensors_with_prefix, to_arrays
from models.routing.routing_profiles import VOCABULARY, RoutingProfiles, count_pieces, token_profile
from trainer.task_data import Clip, Pair
from trainer.video_embedding import embed_clips


class MethodError(ValueError):
    """Invalid settings, or a release that the method cannot continue."""


class MethodConfig(BaseModel):
    """Settings that all methods share; a task can override each of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(default=20, ge=1, le=1000)
    batch_size: int = Field(default=8, ge=1, le=1024)
    # captioned videos that the last epoch trains on; all: also the derived test videos, which the earlier epochs leave
    # out and recall is measured on by the state before this epoch
    last_epoch: Literal["train", "all"] = "train"
    # maximum gradient steps per task, divided among the epochs; in a larger domain each epoch trains on a random part
    # of the pairs; unset: each epoch trains on all pairs
    max_steps: int | None = Field(default=None, ge=1)
    # maximum training videos that a closed-form method observes, chosen at random; unset: all
    max_videos: int | None = Field(default=None, ge=2)
    seed: int = Field(default=42, ge=0)
    # learning-rate schedule; cosine: half a cosine wave down to zero; step: full rate in the first epoch, then a tenth
    # of it
    schedule: Literal["cosine", "step"] = "cosine"
    # share of steps over which the learning rate rises linearly
    warmup: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.2, ge=0, le=10)
    # number format of the towers' matrix products in training; auto: bfloat16 where the hardware supports it
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    # gradient checkpointing: the backward pass recomputes the activations of the towers' blocks, which saves memory at
    # the cost of time; for large backbones
    checkpointing: bool = False
    # disk space for cached outputs of the frozen first image blocks, at most half of the free space; outputs that do
    # not fit are recomputed in every step; 0: no cache
    feature_cache_bytes: int = Field(default=4 * 1024**3, ge=0)
    logit_scale: float = Field(default=100.0, gt=0, le=1000)  # 1/τ of the contrastive losses

    @model_validator(mode="after")
    def _require_earlier_epochs(self) -> Self:
        if self.last_epoch == "all" and self.epochs < 2:
            raise ValueError(
                "last_epoch: all needs at least 2 epochs; the state before the last one is measured"
            )
        return self


class Method(ABC):
    """A continual-learning method on a backbone.

    A subclass implements :meth:`encode_videos` and :meth:`video_tensors` and, if it learns, the hooks, the trained
    parameters (:meth:`parameter_groups`) and the state (:meth:`state_dict`, :meth:`load_state_dict`).
    """

    name: ClassVar[str]  # also of the module and the recipe
    family: ClassVar[EncoderFamily]  # encodes queries and videos with the releases
    is_trainable: ClassVar[bool] = True  # whether the method learns from captions; False for zero-shot
    is_closed_form: ClassVar[bool] = False  # it observes each training video once, without gradient steps
    # Whether the loss needs the frames themselves, of the whole batch: not the tokens that a frozen network could
    # supply, and not only those of this process.
    needs_frames: ClassVar[bool] = False
    config_class: ClassVar[type[MethodConfig]] = MethodConfig
    # Settings that shape the learned weights; a lineage's first task fixes them.
    architecture_settings: ClassVar[tuple[str, ...]] = ()
    caption_tensors: ClassVar[tuple[str, ...]] = ()  # with the last task's captions, for its routing evidence

    def __init__(self, backbone: Backbone, config: MethodConfig) -> None:
        self.backbone = backbone
        self.config = config
        self.micro_batch: int | None = None  # pairs that the towers encode at once in training; None: all
        # State that has not trained on the last task's fold; None if no epoch has.
        self.before_last_epoch: Self | None = None
        # Vector IDs of the last task's videos whose captions were learned.
        self.learned_videos: Set[int] = frozenset()
        self.profile_factor = 1.0  # of the logarithms in routing profiles, as in the query encoders
        self.learned_tasks: list[ReleaseTask] = []
        self.profiles = RoutingProfiles.from_dense(np.empty((0, VOCABULARY), np.float32))

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:  # noqa: B027 (optional hook)
        """Prepare the parameters for a task, once, before its first step; if not trained, it is only embedded."""

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the scalar loss of a batch.

        Args:
            frames: ``uint8 [B, M, H, W, 3]``, or their tokens ``float [B, M, P+1, width]`` after the frozen part of
                the image tower: a frozen network and :attr:`frozen_image_block_count` blocks. Where several processes
                train, only this one's; the functions that encode them return the vectors of all B.
            texts: B captions, one per video.
            references: ``[R, dim]`` stored vectors of earlier tasks' training videos; None on the first task.
        """
        raise AssertionError(f"{self.name} takes no gradient steps")

    def observe(self, frames: Tensor, captions: Sequence[Sequence[str]], clips: Sequence[Clip] = ()) -> None:
        """Collect what a closed-form method needs from training videos ``uint8 [n, M, H, W, 3]`` with one or more
        captions each; called once per video. :meth:`embed_videos` may then embed the clips without their frames.
        """
        raise AssertionError(f"{self.name} takes gradient steps")

    def begin_epoch(self, epoch: int, pairs: Sequence[Pair]) -> None:  # noqa: B027 (optional hook)
        """Prepare an epoch; state that checkpoints do not contain must follow from the checkpoint and the arguments."""

    def refit(self, rows: Sequence[int], captions: Sequence[str]) -> Method | None:
        """Learn the last task again from some of its videos, for calibration and measurement.

        Only closed-form methods support this, between :meth:`record_task` and the next task. Vectors of the new method
        can be compared with those of this one. The rows are the positions of the videos in the order in which they
        were observed. Returns None if the method would take gradient steps.
        """
        return None

    def after_step(self) -> None:  # noqa: B027 (optional hook)
        """Update state after an optimizer step."""

    def after_epoch(self, validation: Sequence[Clip]) -> None:  # noqa: B027 (optional hook)
        """Update state after an epoch, before its checkpoint is written."""

    def bytes_after_epoch(self, validation: Sequence[Clip]) -> int:
        """Estimate the device memory in bytes that :meth:`after_epoch` will allocate and keep."""
        return 0

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:  # noqa: B027 (optional hook)
        """Finish a task, with all its training examples; called once, after its last step."""

    # -- training ---------------------------------------------------------------------------------------

    @property
    def frozen_image_block_count(self) -> int:
        """Number of first image blocks whose outputs can be cached, because no trained parameter affects them."""
        return 0

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Divide the current task's parameters into AdamW groups with ``params``, ``lr`` and ``weight_decay``."""
        return []

    def state_dict(self) -> dict[str, Tensor]:
        """Collect all learned state by name, for a checkpoint or a release."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 (optional hook)
        """Restore the result of :meth:`state_dict`, after the same call of :meth:`begin_task`."""

    def copy(self) -> Self:
        """Copy the method on the same backbone."""
        return deepcopy(self, {id(self.backbone): self.backbone})

    def train(self, mode: bool = True) -> None:  # noqa: B027 (optional hook)
        """Switch dropout and routing noise on or off; by default a method has neither."""

    # -- encoding ---------------------------------------------------------------------------------------

    @abstractmethod
    def encode_videos(self, frames: Tensor) -> Tensor:
        """Encode videos ``uint8 [n, M, H, W, 3]`` as unit vectors ``[n, dim]``."""

    def embed_videos(
        self, clips: Sequence[Clip], *, report: Callable[[int], None] = lambda done: None
    ) -> Vectors:
        """Embed clips as unit vectors ``[n, dim]``; see :func:`~trainer.video_embedding.embed_clips`."""
        return embed_clips(self.encode_videos, clips, report=report)

    @abstractmethod
    def video_tensors(self) -> dict[str, Tensor]:
        """Collect the learned weights that :meth:`encode_videos` depends on, by name."""

    def fingerprint(self) -> str:
        """Compute the fingerprint that identifies the current video encoder."""
        backbone, tensors = self.backbone, to_arrays(self.video_tensors())
        return video_fingerprint(backbone.image_fingerprint, backbone.dim, backbone.spec.frames, tensors)

    def query_encoder(self, pinned: Mapping[str, ReleaseState] | None = None) -> QueryEncoder:
        """Open a query encoder with the current weights; shards without a ``pinned`` release have the current state."""
        state = self.release()
        return open_query_encoder(
            self.backbone, state, pinned or dict.fromkeys((t.task_id for t in state.tasks), state)
        )

    # -- releases ---------------------------------------------------------------------------------------

    def record_task(self, task_id: str, name: str, captions: Sequence[str]) -> None:
        """Append a task's fingerprint and routing profile; called once, after :meth:`end_task`."""
        self.learned_tasks.append(ReleaseTask(task_id, name, self.fingerprint()))
        profile = RoutingProfiles.from_dense(token_profile(count_pieces(captions), self.profile_factor)[None])
        self.profiles = RoutingProfiles.concatenate([self.profiles, profile])

    def release(self) -> ReleaseState:
        """Copy the current state into a release."""
        return ReleaseState(
            method=self.name,
            kind=self.family.kind,
            backbone=self.backbone.name,
            backbone_fingerprint=self.backbone.fingerprint,
            fingerprint=self.fingerprint(),
            frames=self.backbone.spec.frames,
            tasks=list(self.learned_tasks),
            config=self.config.model_dump(),
            profiles=self.profiles,
            tensors=to_arrays({name: tensor.detach().clone() for name, tensor in self.state_dict().items()}),
        )

    @classmethod
    def resume(cls, backbone: Backbone, config: MethodConfig, previous: ReleaseState | None) -> Self:
        """Construct a method that continues a release, or a new one; raise MethodError, see :meth:`find_obstacle`."""
        method = cls(backbone, config)
        if previous is None:
            return method
        if previous.is_partial:
            raise MethodError(
                "the release cannot be continued: its training state was dropped when two later ones were learned"
            )
        if obstacle := cls.find_obstacle(backbone, config, previous):
            raise MethodError(f"method {cls.name!r} cannot continue the release: {obstacle}")
        method.learned_tasks = list(previous.tasks)
        method.profiles = previous.profiles
        method.load_release(previous)
        return method

    @classmethod
    def find_obstacle(cls, backbone: Backbone, config: MethodConfig, previous: ReleaseState) -> str | None:
        """Explain why the method cannot continue a release; None if it can.

        It can continue the releases of the same backbone and number of frames that it has made itself with the same
        :attr:`architecture_settings`, and those of ``zero_shot``.
        """
        if previous.backbone_fingerprint != backbone.fingerprint or previous.frames != backbone.spec.frames:
            return f"it was made on backbone {previous.backbone!r} with {previous.frames} frames per video"
        if previous.method != cls.name:
            is_frozen = previous.kind == FROZEN_FAMILY.kind
            return None if is_frozen else f"it was made with method {previous.method!r}"
        fixed = {key: previous.config[key] for key in cls.architecture_settings}
        changed = [f"{key} {value!r}" for key, value in fixed.items() if getattr(config, key) != value]
        return f"it was made with {', '.join(changed)}" if changed else None

    def load_release(self, previous: ReleaseState) -> None:
        """Load the weights of this method's release; a zero-shot release has none."""
        if previous.kind == self.family.kind:
            self.load_state_dict(tensors_with_prefix("", previous.tensors))


def in_task_loss(texts: Tensor, videos: Tensor, scale: float) -> Tensor:
    """Compute ½ (L_v2t + L_t2v), the contrast within a batch in both directions (ctvr-ffa-tame, eqs. 7 and 9), from
    pairs of query and video vectors ``[B, D]`` and the inverse temperature 1/τ.
    """
    similarity = scale * texts @ videos.T
    truth = torch.arange(len(similarity), device=similarity.device)
    return (F.cross_entropy(similarity, truth) + F.cross_entropy(similarity.T, truth)) / 2


def cross_task_loss(texts: Tensor, videos: Tensor, references: Tensor, scale: float) -> Tensor:
    """Compute L_CT, text to video with earlier tasks' stored vectors ``[R, D]`` as negatives (ctvr-ffa-tame, eq. 8),
    which receive no gradient.
    """
    similarity = scale * texts @ torch.cat([videos, references.detach()]).T
    return F.cross_entropy(similarity, torch.arange(len(texts), device=similarity.device))
