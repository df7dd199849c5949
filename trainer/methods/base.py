"""The seam every continual-learning method fits: four hooks, and two ways to encode.

A worker, a benchmark and a test drive a method alike::

    method.begin_task(task_id, name)
    for batch in batches:                         # the loop owns optimiser, schedule and checkpoints
        method.loss(frames, texts, references).backward(); optimiser.step(); method.after_step()
    method.end_task(pairs)
    vectors = method.encode_videos(frames)        # frozen from here on, in the task's shard
    release = method.release()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.encoder_family import EncoderFamily
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_lineage import ReleaseTask
from models.releases.release_state import ReleaseState, video_fingerprint
from models.routing.routing_profiles import RoutingProfiles
from models.routing.token_statistics import token_presence, token_profile
from trainer.task_data import Clip, Pair

__all__ = ["Method", "MethodConfig", "MethodError"]


class MethodError(ValueError):
    """A method cannot do what is asked of it: unknown settings, or a release that it cannot continue."""


class MethodConfig(BaseModel):
    """Settings that every method has; a task's own settings override them one by one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(default=20, ge=1, le=1000)
    batch_size: int = Field(default=8, ge=1, le=1024)
    seed: int = Field(default=42, ge=0)
    schedule: Literal["cosine", "step"] = Field(
        default="cosine",
        description="cosine: half a wave down to zero; step: full rate in the first epoch, a tenth after it",
    )
    warmup: float = Field(default=0.0, ge=0, le=1, description="share of the steps with rising learning rate")
    weight_decay: float = Field(default=0.2, ge=0, le=10)
    precision: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto",
        description="of the towers' matrix products while training; auto: bfloat16 where the hardware has it",
    )
    checkpointing: bool = Field(
        default=False,
        description="compute the towers' blocks again in the backward pass instead of keeping what is inside them: "
        "less memory, more time, for large backbones",
    )
    feature_cache_bytes: int = Field(
        default=4 * 1024**3,
        ge=0,
        description="disk space for what frozen first blocks of the image tower make of a task's training videos, and "
        "at most half of what is free; what has no room is computed at every step, and with 0 all of it",
    )
    logit_scale: float = Field(default=100.0, gt=0, le=1000, description="1/τ of the contrastive losses")


class Method(ABC):
    """A continual-learning method on a backbone.

    Args:
        backbone: shared and frozen; a method that trains towers clones it.
        config: validated settings.

    Attributes:
        learned_tasks: tasks so far, in order.
        profiles: for routing, the words of each task's training captions.
    """

    name: ClassVar[str]
    family: ClassVar[EncoderFamily]
    is_trainable: ClassVar[bool] = True
    requires_all_videos: ClassVar[bool] = (
        False  # learns from all videos ever seen, and embeds all of them again
    )
    config_class: ClassVar[type[MethodConfig]] = MethodConfig
    architecture_settings: ClassVar[tuple[str, ...]] = ()  # settings that a library keeps from its first task

    def __init__(self, backbone: Backbone, config: MethodConfig) -> None:
        self.backbone = backbone
        self.config = config
        self.learned_tasks: list[ReleaseTask] = []
        self.profiles = RoutingProfiles.from_dense(np.empty((0, backbone.vocabulary), np.float32))

    # -- the four hooks ---------------------------------------------------------------------------------

    @abstractmethod
    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Make room for a task; ``trained`` is false when it has no captions and is only to be indexed."""

    @abstractmethod
    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """The scalar to minimise.

        Args:
            frames: ``uint8 [B, M, H, W, 3]``; with :attr:`frozen_image_block_count`, also the tokens that these make of
                them, ``float [B, M, P+1, width]``.
            texts: B captions, one per video.
            references: ``[R, dim]`` stored vectors of earlier tasks' training videos; none on the first task.
        """

    def after_step(self) -> None:  # noqa: B027 (most methods have nothing to do here)
        """Called after every optimiser step."""

    def after_epoch(self, validation: Sequence[Clip]) -> None:  # noqa: B027 (likewise)
        """Called after every epoch, before its checkpoint; ``validation`` are the task's ``val`` videos."""

    @abstractmethod
    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Called once after the last step of a task, with everything that it was trained on."""

    # -- what the loop needs ----------------------------------------------------------------------------

    @property
    def frozen_image_block_count(self) -> int:
        """First blocks of the backbone's image tower below everything that is trained: they need to run but once."""
        return 0

    @abstractmethod
    def parameter_groups(self) -> list[dict[str, Any]]:
        """AdamW groups of what this task trains: ``params``, ``lr``, ``weight_decay``."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Everything learned, for a checkpoint."""

    @abstractmethod
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`state_dict` gave, after the same :meth:`begin_task`."""

    def train(self, mode: bool = True) -> None:  # noqa: B027 (likewise)
        """Switch dropout and exploration on or off; nothing by default."""

    # -- encoding ---------------------------------------------------------------------------------------

    @abstractmethod
    def encode_videos(self, frames: Tensor) -> Tensor:
        """Unit vectors ``[n, dim]`` of ``uint8 [n, M, H, W, 3]``."""

    @abstractmethod
    def video_tensors(self) -> dict[str, Tensor]:
        """The learned weights that :meth:`encode_videos` depends on."""

    def fingerprint(self) -> str:
        """Identity of the video encoder as it is now."""
        return video_fingerprint(self.backbone, self.backbone.spec.frames, self.video_tensors())

    def query_encoder(self, pinned: Mapping[str, ReleaseState] | None = None) -> QueryEncoder:
        """The query encoder of the current state; without ``pinned``, every shard counts as made by it."""
        state = self.release()
        return open_query_encoder(
            self.backbone, state, pinned or dict.fromkeys((t.task_id for t in state.tasks), state)
        )

    # -- releases ---------------------------------------------------------------------------------------

    def record_task(self, task_id: str, name: str, captions: Sequence[str]) -> None:
        """Close a task after :meth:`end_task`: note its encoder and its words (for routing)."""
        self.learned_tasks.append(ReleaseTask(task_id, name, self.fingerprint()))
        own = RoutingProfiles.from_dense(self._profile(captions)[None].numpy())
        self.profiles = self.profiles.append_tasks(own)

    def release(self) -> ReleaseState:
        """The state as a release."""
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
            tensors={name: tensor.detach().clone() for name, tensor in self.state_dict().items()},
        )

    @classmethod
    def resume(cls, backbone: Backbone, config: MethodConfig, previous: ReleaseState | None) -> Self:
        """A method that goes on from a release, or starts afresh.

        Raises:
            MethodError: the release is of another method (a library learned by ``zero_shot`` can be continued
                by any) or backbone, or a setting that shapes its weights was changed.
        """
        method = cls(backbone, config)
        if previous is None:
            return method
        if previous.backbone_fingerprint != backbone.fingerprint or previous.frames != backbone.spec.frames:
            raise MethodError(
                f"the library was learned on backbone {previous.backbone!r} with {previous.frames} frames per "
                f"video; this worker runs {backbone.name!r} with {backbone.spec.frames}. Give it the same, or "
                "start a new library in another data folder"
            )
        if previous.method != cls.name and previous.kind != FROZEN_FAMILY.kind:
            raise MethodError(
                f"the library was learned with method {previous.method!r}, which {cls.name!r} cannot continue; "
                f"post the task with method {previous.method!r}, or start a new library in another data folder"
            )
        if previous.method == cls.name:
            fixed = {key: previous.config[key] for key in cls.architecture_settings}
            changed = [f"{key} is {value!r}" for key, value in fixed.items() if getattr(config, key) != value]
            if changed:
                raise MethodError(
                    f"settings that a library keeps from its first task were changed: {', '.join(changed)}; "
                    "leave them out of the task's settings"
                )
        method.learned_tasks = list(previous.tasks)
        method.profiles = previous.profiles
        method.load_release(previous)
        return method

    def load_release(self, previous: ReleaseState) -> None:
        """Take over the weights of a release of the same method, or of a frozen one."""
        if previous.kind == self.family.kind:
            self.load_state_dict(previous.tensors)

    def _profile(self, captions: Sequence[str]) -> Tensor:
        """The words of a task's training captions, rounded as a release stores them."""
        counts = torch.zeros(self.backbone.vocabulary)
        for start in range(0, len(captions), 256):
            ids = self.backbone.tokenize(captions[start : start + 256])
            counts += token_presence(ids, self.backbone.end_of_text(ids), len(counts)).sum(dim=0)
        return token_profile(counts).half().float()
