"""CTP: Compatible momentum contrast with Topology Preservation (ctp, section 4).

Three sets of networks take part in a task: the ones being trained, θ_t; a frozen copy of them as the task
found them, θ_{t-1}; and a momentum copy θ_c that both of these pull at (eq. 3). The momentum networks supply
keys for contrast, with a queue of earlier ones (eq. 4), and soft targets for masked words (eq. 5). The
frozen ones say how alike the videos and texts of a batch are to each other, which is to stay so (eqs. 6-9).
The first task has no earlier networks: a plain moving average, and no topology to preserve (published code).

What differs from the paper: the towers are a pre-trained CLIP, so that the vectors are CLIP's projections
instead of new ones of 256 numbers; a mean over frames is the video's vector; frames are not augmented, and
captions may be as long as the tower reads. The multi-modal encoder is settled in ``models.encoders.fusion_encoder``. It
starts from random weights and so has a learning rate of its own; every caption has at least one masked word, since
ours are short; and it needs open blocks, so that a backbone of DeiT and BERT, the paper's, has the retrieval part
alone. The learning rate falls to zero instead of 1e-6, and gradients are clipped, as for every method. The paper's
tasks have a hundred times more pairs than its queue has keys; a queue with more keys than a task has pairs would
hold a pair's own earlier keys as negatives.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.encoders.fusion_encoder import FusionEncoder, create_fusion_encoder, frame_states
from models.encoders.tower_forward import encode_texts
from models.releases.release_state import tensors_with_prefix
from trainer.methods.base import MethodError
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.methods.shared.key_queues import KeyQueues
from trainer.task_data import Pair

__all__ = ["Ctp", "CtpConfig", "mask_words", "momentum_contrast_loss", "topology_loss"]

_SUPPRESSED = -1000.0  # ctp, section 4.3: what the similarity of a sample to itself is set to
_MASKED, _REPLACED = 0.8, 0.1  # BERT: of the chosen words, so many are masked and so many replaced


class CtpConfig(FinetuneConfig):
    """Settings of CTP; defaults are those of the paper, and of the published code where it is silent."""

    logit_scale: float = Field(default=1 / 0.07, gt=0, le=1000, description="1/τ of equations 1, 4, 6 and 8")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="m of equation 3")
    first_momentum: float = Field(
        default=0.995, ge=0, lt=1, description="m on the first task, whose momentum networks follow θ_t alone"
    )
    pulled_by: Literal["both", "current", "previous"] = Field(
        default="both",
        description="what the momentum networks follow: both as in equation 3, or one (table 3)",
    )
    queue: int = Field(default=1024, ge=0, le=1_000_000, description="K, earlier keys; 0: none (table 3)")
    momentum_contrast: float = Field(default=1.0, ge=0, le=100, description="weight of L_CMC in equation 10")
    cross_modal: float = Field(default=1.0, ge=0, le=100, description="weight of L_c in equation 10")
    same_modal: float = Field(default=1.0, ge=0, le=100, description="weight of L_s in equation 10")
    suppress_diagonal: bool = Field(
        default=True, description="false: equation 8 keeps the similarity of a sample to itself (table 3)"
    )
    masked_language: bool = Field(
        default=True, description="false: without multi-modal encoder, equations 2 and 5"
    )
    masked_words: float = Field(default=0.15, gt=0, lt=1, description="share of words to predict")
    fusion_layers: int = Field(default=6, ge=1, le=48, description="layers of the multi-modal encoder")
    fusion_learning_rate: float = Field(default=1e-4, gt=0, le=1, description="of the multi-modal encoder")


class Ctp(Finetune):
    """Both towers, and a multi-modal encoder, held back by what they were."""

    name = "ctp"
    config_class = CtpConfig
    config: CtpConfig
    architecture_settings = ("masked_language", "fusion_layers", "queue")

    def __init__(self, backbone: Backbone, config: CtpConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            fusion = create_fusion_encoder(backbone, config.fusion_layers) if config.masked_language else None
            self.queues = KeyQueues(config.queue, backbone.dim)
        self.online = _Networks(self.model, fusion).to(backbone.device)
        self.queues.to(backbone.device)
        self.momentum = self.online.frozen_copy()
        self.previous: _Networks | None = None
        self._tasks = 0  # trained before this one
        self._open = False
        self._keys: tuple[Tensor, Tensor] | None = None
        self.online.requires_grad_(False)

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """θ_{t-1} and θ_c start as copies of θ_t."""
        super().begin_task(task_id, name, trained=trained)
        self._open = trained
        if not trained:
            return
        if self.online.fusion is not None:
            self.online.fusion.requires_grad_(True)
        self.momentum = self.online.frozen_copy()
        self.previous = self.online.frozen_copy() if self._tasks else None

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Equation 10."""
        config = self.config
        ids = self.model.tokenize(texts).to(self.model.device)
        queries, videos, tokens = self.online.encode(ids, frames)
        with torch.no_grad():
            query_keys, video_keys, token_keys = self.momentum.encode(ids, frames)
        self._keys = query_keys, video_keys
        loss = self.contrast(queries, videos)  # eq. 1
        compatible = momentum_contrast_loss(
            queries,
            videos,
            torch.cat([query_keys, self.queues.texts]),
            torch.cat([video_keys, self.queues.videos]),
            config.logit_scale,
        )
        if config.masked_language:
            hard, soft = self._masked_language_losses(ids, tokens, token_keys)
            loss, compatible = loss + hard, compatible + soft
        loss = loss + config.momentum_contrast * compatible
        if self.previous is not None:
            with torch.no_grad():
                old_queries, old_videos, _ = self.previous.encode(ids, frames)
            across, within = self._topology_losses((queries, videos), (old_queries, old_videos))
            loss = loss + config.cross_modal * across + config.same_modal * within
        return loss

    @torch.no_grad()
    def after_step(self) -> None:
        """Equation 3; then this step's keys join the queue.

        The published code pulls before a step's loss, with what the step before left: the same, but that the
        last step of a task is followed by a pull, which nothing reads.
        """
        pulling, m = [self.online], self.config.first_momentum
        if self.previous is not None:
            sides = {"current": [self.online], "previous": [self.previous]}
            sides["both"] = sides["current"] + sides["previous"]
            pulling, m = sides[self.config.pulled_by], self.config.momentum
        share = (1 - m) / len(pulling)
        for kept, *pulls in zip(
            self.momentum.parameters(), *(networks.parameters() for networks in pulling), strict=True
        ):
            kept.mul_(m)
            for pull in pulls:
                kept.add_(pull, alpha=share)
        if self._keys is not None and self.config.queue:
            self.queues.push(*self._keys)
        self._keys = None

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        self.online.requires_grad_(False)
        self.previous = None
        self._tasks += self._open
        self._open = False

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        groups = super().parameter_groups()
        if self.online.fusion is not None:
            trained = [p for p in self.online.fusion.parameters() if p.requires_grad]
            groups.append(
                {
                    "params": trained,
                    "lr": self.config.fusion_learning_rate,
                    "weight_decay": self.config.weight_decay,
                }
            )
        return groups

    def state_dict(self) -> dict[str, Tensor]:
        """Between tasks without the momentum networks, which every task begins anew."""
        queues = {f"queues.{name}": tensor for name, tensor in self.queues.state_dict().items()}
        tensors = {**self.online.tensors(), **queues, "tasks": torch.tensor(self._tasks)}
        if self._open:
            tensors |= {f"momentum.{name}": tensor for name, tensor in self.momentum.tensors().items()}
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.online.load_tensors(tensors)
        self.queues.load_state_dict(tensors_with_prefix("queues.", tensors))
        self._tasks = int(tensors["tasks"])
        momentum = tensors_with_prefix("momentum.", tensors)
        if momentum:
            self.momentum.load_tensors(momentum)

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_pairs(self, frames: Tensor, texts: Sequence[str]) -> Tensor:
        """Unit vectors ``[n, width]`` of pairs for multi-modal retrieval (ctp, section 5.1).

        Args:
            frames: ``uint8 [n, M, H, W, 3]``.
            texts: n captions.

        Raises:
            MethodError: this library is learned without a multi-modal encoder.
        """
        if self.online.fusion is None:
            raise MethodError(
                "method 'ctp' has no multi-modal encoder in this library, which was started with masked_language: "
                "false; start a library with masked_language: true to encode pairs"
            )
        ids = self.model.tokenize(texts).to(self.model.device)
        return self.online.fusion.fuse_pairs(self.model, ids, frame_states(self.model, frames))

    # -- inside -----------------------------------------------------------------------------------------

    def _topology_losses(
        self, now: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """L_c and L_s, equations 7 and 9, of query and video vectors by the present and previous networks."""
        (queries, videos), (old_queries, old_videos) = now, before
        scale, suppress = self.config.logit_scale, self.config.suppress_diagonal
        across = topology_loss(videos @ queries.T, old_videos @ old_queries.T, scale)
        back = topology_loss(queries @ videos.T, old_queries @ old_videos.T, scale)
        among_videos = topology_loss(videos @ videos.T, old_videos @ old_videos.T, scale, suppress=suppress)
        among_texts = topology_loss(
            queries @ queries.T, old_queries @ old_queries.T, scale, suppress=suppress
        )
        return (across + back) / 2, (among_videos + among_texts) / 2

    def _masked_language_losses(
        self, ids: Tensor, tokens: Tensor, token_keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Equations 2 and 5: the masked words themselves, and what the momentum networks take them for."""
        end = self.model.end_of_text(ids)
        shown, chosen, masked = mask_words(ids, end, self.config.masked_words)
        predicted = self.online.predict(shown, masked, chosen, end, tokens)
        with torch.no_grad():
            targets = self.momentum.predict(shown, masked, chosen, end, token_keys).softmax(dim=-1)
        count = chosen.sum().clamp(min=1)  # captions without a single word leave nothing to predict
        hard = F.cross_entropy(predicted, ids[chosen], reduction="sum") / count
        soft = F.cross_entropy(predicted, targets, reduction="sum") / count
        return hard, soft


def momentum_contrast_loss(
    queries: Tensor, videos: Tensor, query_keys: Tensor, video_keys: Tensor, scale: float
) -> Tensor:
    """L_ita^c, equation 4: online vectors ``[B, D]`` against momentum keys ``[B+K, D]``, of which the first B
    are the batch's own, both ways."""
    truth = torch.arange(len(queries), device=queries.device)
    to_text = F.cross_entropy(scale * videos @ query_keys.T, truth)
    to_video = F.cross_entropy(scale * queries @ video_keys.T, truth)
    return (to_text + to_video) / 2


def topology_loss(now: Tensor, before: Tensor, scale: float, *, suppress: bool = False) -> Tensor:
    """H(P_{θ_{t-1}}, P_{θ_t}), equations 6-9: how alike the samples of a batch are to each other.

    The published code takes the divergence instead: the same gradient, less the entropy of the targets.

    Args:
        now, before: similarities ``[B, B]`` by the present and by the previous networks.
        scale: 1/τ.
        suppress: leave the similarity of a sample to itself out (section 4.3).
    """
    if suppress:
        own = torch.eye(len(now), dtype=torch.bool, device=now.device)
        now, before = now.masked_fill(own, _SUPPRESSED), before.masked_fill(own, _SUPPRESSED)
    return F.cross_entropy(scale * now, (scale * before).softmax(dim=-1))


def mask_words(ids: Tensor, end: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Choose words to predict: on average ``share`` of them, at least one per caption, as BERT does.

    Of the chosen 80 % are masked, 10 % replaced by a random word, 10 % left as they are.

    Args:
        ids: ``[B, L]``, from start to end of text.
        end: ``[B]`` position of the end-of-text token.

    Returns:
        Ids to show, chosen words, and which of them are to be masked, each ``[B, L]``.
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    words = (place > 0) & (place < end.unsqueeze(1))
    draw = torch.rand(ids.shape).to(ids.device).masked_fill(~words, 1)
    chosen = words & ((draw < share) | (draw == draw.amin(dim=1, keepdim=True)))
    fate = torch.rand(ids.shape).to(ids.device)
    masked = chosen & (fate < _MASKED)
    replaced = chosen & ~masked & (fate < _MASKED + _REPLACED)
    start_of_text = int(ids[0, 0])  # the special tokens are the last of CLIP's vocabulary
    others = torch.randint(start_of_text, ids.shape).to(ids.device)
    return torch.where(replaced, others, ids), chosen, masked


class _Networks(nn.Module):
    """Everything that equation 3 calls θ."""

    def __init__(self, towers: Backbone, fusion: FusionEncoder | None) -> None:
        super().__init__()
        self.towers = towers
        self.fusion = fusion

    def frozen_copy(self) -> _Networks:
        return copy.deepcopy(self).requires_grad_(False)

    def encode(self, ids: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unit query and video vectors ``[B, dim]``, and the videos' states ``[B, M, P+1, visual_width]``."""
        tokens = frame_states(self.towers, frames)
        return encode_texts(self.towers, ids)[0], self.towers.pool_frames(tokens)[0], tokens

    def predict(self, shown: Tensor, masked: Tensor, chosen: Tensor, end: Tensor, tokens: Tensor) -> Tensor:
        """Logits ``[k, V]`` of the k chosen words."""
        assert self.fusion is not None
        embedded = self.fusion.embed_masked(self.towers, shown, masked)
        fused = self.fusion.fuse(self.towers, embedded, end, tokens)
        return self.fusion.predict_words(fused[chosen], self.towers.text.token_embedding.weight)

    def tensors(self) -> dict[str, Tensor]:
        fusion = self.fusion.state_dict() if self.fusion is not None else {}
        return {**self.towers.tensors(), **{f"fusion.{name}": tensor for name, tensor in fusion.items()}}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.towers.load_tensors({n: t for n, t in tensors.items() if n.startswith("clip.")})
        if self.fusion is not None:
            self.fusion.load_state_dict(tensors_with_prefix("fusion.", tensors))
