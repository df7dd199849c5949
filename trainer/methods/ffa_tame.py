"""FFA + TAME: Frame Fusion Adapter and Task-Aware Mixture-of-Experts (ctvr-ffa-tame, section 3).

The backbone is frozen. FFA adds attention across frames to the image tower; TAME conditions the text tower on a learned
task prototype, so that a query is encoded for the shard it searches. Losses: contrast within the batch (eq. 7) and
against earlier tasks' stored videos (eq. 8), weighted by β (eq. 9).

``docs/methods.md`` lists the differences from the paper and from its published code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from models.adapters.image_adapters import FrameFusion, FusionMix, FusionNeighbor
from models.adapters.low_rank_text_update import TextUpdate
from models.adapters.tame import NO_EXPERT, ROUTED, Tame
from models.backbones.backbone import Backbone
from models.encoders.adapted_families import TAME_FAMILY, WORD_PREFIX
from models.encoders.frozen_families import FROZEN_FAMILY
from models.encoders.tower_forward import TextCondition, WordCondition, encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix
from trainer.methods.base import Method, MethodConfig, cross_task_loss, in_task_loss
from trainer.task_data import Pair


class FfaTameConfig(MethodConfig):
    """Settings of FFA + TAME; the defaults are those for MSR-VTT in the paper and the published code."""

    ffa_layers: int = Field(default=10, ge=0)  # number of deepest visual blocks with an FFA; 0: no FFA
    ffa_neighbor: FusionNeighbor = "alternate"
    ffa_mix: FusionMix = "convex"
    tame: bool = True  # false: no TAME; the frozen text tower encodes queries
    prototypes: bool = True  # false: the router sees only the end-of-text token, without a prototype
    # expert: the first task trains expert 0 only, and all other experts start as its copies, as in the published code;
    # routed: the first task uses the router, as in equation 4
    first_task: Literal["expert", "routed"] = "expert"
    experts: int = Field(default=10, ge=1, le=256)
    rank: int = Field(default=64, ge=1, le=1024)
    top_k: int = Field(default=2, ge=1)
    scale: float = 4.0  # λ of equation 6
    dropout: float = Field(default=0.1, ge=0, lt=1)
    cross_task: float = Field(default=0.6, ge=0, le=1)  # β of equation 9; the first task uses 0
    # learning rate of the adapters on the first task
    first_learning_rate: float = Field(default=2e-5, gt=0, le=1)
    learning_rate: float = Field(default=4e-6, gt=0, le=1)  # learning rate of the adapters on later tasks
    gate_learning_rate: float = Field(default=1e-5, gt=0, le=1)  # learning rate of FFA's α and of prototypes
    # learning rate of the token embeddings, shared by all tasks; 0: frozen embeddings, as in the paper
    word_learning_rate: float = Field(default=0.0, ge=0, le=1)


class FfaTame(Method):
    """FFA of the image tower + TAME of the text tower, with one prototype per task, on a frozen backbone."""

    name = "ffa_tame"
    family = TAME_FAMILY
    config_class = FfaTameConfig
    config: FfaTameConfig
    architecture_settings = (
        "ffa_layers",
        "ffa_neighbor",
        "ffa_mix",
        "tame",
        "prototypes",
        "experts",
        "rank",
        "top_k",
        "scale",
    )

    def __init__(self, backbone: Backbone, config: FfaTameConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.fusion = FrameFusion.for_backbone(
                backbone, layers=config.ffa_layers, neighbor=config.ffa_neighbor, mix=config.ffa_mix
            )
            self.tame = Tame(
                backbone.text_width,
                len(backbone.text_blocks),
                experts=config.experts,
                rank=config.rank,
                top_k=config.top_k,
                scale=config.scale,
                dropout=config.dropout,
            )
        self.fusion.to(backbone.device)
        self.tame.to(backbone.device)
        # Changes to the token embeddings, an addition to the paper.
        self.words = self._new_words() if config.word_learning_rate else None
        self.train(False)

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Add a prototype; before the second trained task, copy the first expert to all others."""
        if not trained:
            self._borrow_prototype()
            return
        single = not self.config.tame or (self.config.first_task == "expert" and not self._has_learned())
        if not single and 0 in self.tame.task_experts and ROUTED not in self.tame.task_experts:
            self.tame.spread_expert(0)
        with torch.random.fork_rng():
            torch.manual_seed(self.config.seed + len(self.learned_tasks))
            prototype = self.tame.add_task(expert=0 if single else ROUTED)
        if not self.config.prototypes:
            prototype.data.zero_()
        self._unfreeze()

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute equation 9."""
        passed = self.frozen_image_block_count if frames.dim() == 4 else 0  # tokens after the frozen blocks
        videos, _ = encode_frames(self.backbone, frames, self.fusion, first_block=passed)
        ids = self.backbone.tokenize(texts)
        condition: TextCondition = self.tame.condition([len(self.learned_tasks)])
        if self.words is not None:
            condition = WordCondition(condition, self.words.as_update_set())
        queries = encode_texts(self.backbone, ids, condition)[0]
        in_task = in_task_loss(queries, videos, self.config.logit_scale)
        if references is None or self.config.cross_task == 0:
            return in_task
        across = cross_task_loss(queries, videos, references, self.config.logit_scale)
        return (1 - self.config.cross_task) * in_task + self.config.cross_task * across

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Freeze all adapters."""
        for adapters in (self.fusion, self.tame, self.words):
            if adapters is not None:
                adapters.requires_grad_(False)

    # -- training ---------------------------------------------------------------------------------------

    @property
    def frozen_image_block_count(self) -> int:
        """Number of image blocks before the first FFA."""
        return max(0, len(self.backbone.visual_blocks) - self.config.ffa_layers)

    def parameter_groups(self) -> list[dict[str, Any]]:
        rate = self.config.learning_rate if self._has_learned() else self.config.first_learning_rate
        slow = {id(p) for p in [*self.fusion.gates(), *self.tame.prototypes]}
        trained = [p for m in (self.fusion, self.tame) for p in m.parameters() if p.requires_grad]
        decay, gate_rate = self.config.weight_decay, self.config.gate_learning_rate
        groups = [
            {"params": [p for p in trained if id(p) not in slow], "lr": rate, "weight_decay": decay},
            {"params": [p for p in trained if id(p) in slow], "lr": gate_rate, "weight_decay": decay},
        ]
        if self.words is not None and self.config.word_learning_rate:
            # Weight decay would shrink the embeddings of words that the batch lacks.
            rate = self.config.word_learning_rate
            groups.append({"params": [self.words.words], "lr": rate, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]

    def train(self, mode: bool = True) -> None:
        self.fusion.train(mode)
        self.tame.train(mode)

    def state_dict(self) -> dict[str, Tensor]:
        tensors = {f"ffa.{name}": tensor for name, tensor in self.fusion.state_dict().items()}
        tensors |= {f"tame.{name}": tensor for name, tensor in self.tame.tensors().items()}
        words = self.words.tensors() if self.words is not None else {}
        return tensors | {f"{WORD_PREFIX}{name}": tensor for name, tensor in words.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.fusion.load_state_dict(tensors_with_prefix("ffa.", tensors))
        self.tame.load_tensors(tensors_with_prefix("tame.", tensors))
        words = tensors_with_prefix(WORD_PREFIX, tensors)
        if words:
            self.words = self.words or self._new_words()
            self.words.load_tensors(words)

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_frames(self.backbone, frames, self.fusion)[0]

    def video_tensors(self) -> dict[str, Tensor]:
        return {f"ffa.{name}": tensor for name, tensor in self.fusion.state_dict().items()}

    # -- internal ---------------------------------------------------------------------------------------

    def load_release(self, previous: ReleaseState) -> None:
        """Load a release; the plain text tower encodes queries for the shards of a zero-shot one."""
        if previous.kind == FROZEN_FAMILY.kind:
            for _ in previous.tasks:
                self.tame.add_task(expert=NO_EXPERT)
        super().load_release(previous)
        self.end_task()

    def _new_words(self) -> TextUpdate:
        """Create token-embedding changes without low-rank matrices."""
        return TextUpdate.for_backbone(self.backbone, rank=0, scale=1.0).to(self.backbone.device)

    def _has_learned(self) -> bool:
        """Check whether an earlier task was trained."""
        return any(expert != NO_EXPERT for expert in self.tame.task_experts[: len(self.learned_tasks)])

    def _unfreeze(self) -> None:
        """Unfreeze what this task trains: all of FFA, and the parts of TAME that its routing mode uses."""
        self.fusion.requires_grad_(True)
        if self.words is not None:
            self.words.words.requires_grad_(self.config.word_learning_rate > 0)
        tame = self.tame
        routed = self.config.tame and tame.task_experts[-1] == ROUTED
        tame.a.requires_grad_(self.config.tame)
        tame.b.requires_grad_(self.config.tame)
        tame.router.requires_grad_(routed)
        tame.noise.requires_grad_(routed)
        tame.prototypes[-1].requires_grad_(routed and self.config.prototypes)

    def _borrow_prototype(self) -> None:
        """Give an untrained task a copy of the newest prototype, since the newest image tower embeds its videos."""
        if not self._has_learned():
            self.tame.add_task(expert=NO_EXPERT)
            return
        last = self.tame.prototypes[-1].detach().clone()
        self.tame.add_task(expert=self.tame.task_experts[-1]).data.copy_(last)
        self.end_task()
