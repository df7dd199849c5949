"""CTP: Compatible momentum contrast with Topology Preservation (ctp, section 4).

A task involves three sets of networks: the trained networks θ_t; θ_{t-1}, a frozen copy from before the task; and θ_c,
a momentum copy that follows both (eq. 3). The momentum networks provide keys for contrast, with a queue of earlier keys
(eq. 4), and soft targets for masked words (eq. 5). The frozen networks provide the similarities within a batch as
targets (eqs. 6 to 9). On the first task, which has no previous networks, θ_c is a plain moving average and there is no
topology to preserve (published code).

Differences from the paper: the towers are a pre-trained CLIP, whose own projections replace new ones of dimension 256;
a video's vector is the mean over its frames; frames are not augmented; captions may fill the text tower's context. The
multi-modal encoder (``models.encoders.fusion_encoder``) starts from random weights and therefore has its own learning
rate. It needs access to transformer blocks, so with the paper's backbone of DeiT and BERT only the retrieval part runs.
The paper masks every selected word; here, as in the published code, 10 % are replaced and 10 % stay unchanged. At least
one word is selected in each caption, since captions are short. The learning rate falls to zero instead of 1e-6, and
gradients are clipped, as for every method. On average the paper's tasks have a hundred times more pairs than its queue
has keys; a queue with more keys than a task has pairs would contain a pair's own earlier keys as negatives.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.encoders.fusion_encoder import FusionEncoder, create_fusion_encoder, frame_states
from models.encoders.tower_forward import encode_texts
from models.releases.release_tensors import tensors_with_prefix
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.methods.shared.momentum import KeyQueues
from trainer.task_data import Pair

_SUPPRESSED = -1000.0  # replaces a sample's similarity to itself (ctp, section 4.3)
_MASKED, _REPLACED = 0.8, 0.1  # BERT: shares of the selected words that are masked and replaced


class CtpConfig(FinetuneConfig):
    """Settings of CTP; the defaults are those of the paper, else of the published code."""

    logit_scale: float = Field(default=1 / 0.07, gt=0, le=1000)  # 1/τ of equations 1, 4, 6 and 8
    momentum: float = Field(default=0.9, ge=0, lt=1)  # m of equation 3
    # m on the first task, whose momentum networks follow θ_t only
    first_momentum: float = Field(default=0.995, ge=0, lt=1)
    queue: int = Field(default=1024, ge=0, le=1_000_000)  # K, earlier keys in a queue; 0: none (table 3)
    momentum_contrast: float = Field(default=1.0, ge=0, le=100)  # weight of L_CMC in equation 10
    cross_modal: float = Field(default=1.0, ge=0, le=100)  # weight of L_c in equation 10
    same_modal: float = Field(default=1.0, ge=0, le=100)  # weight of L_s in equation 10
    masked_language: bool = True  # false: no multi-modal encoder and no equations 2 and 5
    masked_words: float = Field(default=0.15, gt=0, lt=1)  # share of words that are predicted
    fusion_layers: int = Field(default=6, ge=1, le=48)  # number of layers in the multi-modal encoder
    fusion_learning_rate: float = Field(default=1e-4, gt=0, le=1)  # learning rate of the multi-modal encoder


class Ctp(Finetune):
    """Fine-tuning, with momentum contrast and topology preservation, of both towers and a multi-modal encoder."""

    name = "ctp"
    config_class = CtpConfig
    config: CtpConfig
    architecture_settings: ClassVar[tuple[str, ...]] = ("masked_language", "fusion_layers", "queue")

    def __init__(self, backbone: Backbone, config: CtpConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            fusion = create_fusion_encoder(backbone, config.fusion_layers) if config.masked_language else None
            self.queues = KeyQueues(config.queue, backbone.dim)  # earlier keys of the momentum networks
        self.online = _Networks(self.model, fusion).to(backbone.device)  # θ_t, trained
        self.queues.to(backbone.device)
        self.momentum = self.online.frozen_copy()  # θ_c
        self.previous: _Networks | None = None  # θ_{t-1}; none on the first task and between tasks
        self._keys: tuple[Tensor, Tensor] | None = None
        self.online.requires_grad_(False)

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Copy θ_t to θ_{t-1} and θ_c."""
        super().begin_task(task_id, name, trained=trained)
        if not trained:
            return
        if self.online.fusion is not None:
            self.online.fusion.requires_grad_(True)
        self.momentum = self.online.frozen_copy()
        self.previous = self.online.frozen_copy() if self.trained_tasks else None

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        return self.pair_loss(frames, self.model.tokenize(texts))

    def pair_loss(self, frames: Tensor, ids: Tensor) -> Tensor:
        """Compute equation 10 from videos and their captions' token IDs ``[B, L]``."""
        config = self.config
        ids = ids.to(self.model.device)
        queries, videos, tokens = self.online.encode(ids, frames)
        with torch.no_grad():
            query_keys, video_keys, token_keys = self.momentum.encode(ids, frames)
        self._keys = query_keys, video_keys
        loss = self.contrastive_loss(queries, videos)  # eq. 1
        text_keys = torch.cat([query_keys, self.queues.texts])
        all_video_keys = torch.cat([video_keys, self.queues.videos])
        compatible = momentum_contrast_loss(queries, videos, text_keys, all_video_keys, config.logit_scale)
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
        """Apply equation 3, then enqueue the keys of this step.

        The published code applies equation 3 before the next step's loss instead. The only difference is one more
        update after a task's last step, which nothing reads.
        """
        sources, m = [self.online], self.config.first_momentum
        if self.previous is not None:
            sources, m = [self.online, self.previous], self.config.momentum
        share = (1 - m) / len(sources)
        # Networks may share the others.
        is_trained = [weight.requires_grad for weight in self.online.parameters()]

        def trained(networks: _Networks) -> list[Tensor]:
            return list(compress(networks.parameters(), is_trained))

        momentum, *weights = map(trained, (self.momentum, *sources))
        torch._foreach_mul_(momentum, m)
        for source in weights:
            torch._foreach_add_(momentum, source, alpha=share)
        if self._keys is not None and self.config.queue:
            self.queues.push(*self._keys)
        self._keys = None

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        self.online.requires_grad_(False)
        self.previous = None
        super().end_task(pairs)

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        groups = super().parameter_groups()
        if self.online.fusion is not None:
            trained = [p for p in self.online.fusion.parameters() if p.requires_grad]
            rate, decay = self.config.fusion_learning_rate, self.config.weight_decay
            groups.append({"params": trained, "lr": rate, "weight_decay": decay})
        return groups

    def state_dict(self) -> dict[str, Tensor]:
        """Collect the state, without the momentum networks between tasks, since every task resets them."""
        queues = {f"queues.{name}": tensor for name, tensor in self.queues.state_dict().items()}
        tensors = {**self.online.tensors(), **queues, "tasks": torch.tensor(self.trained_tasks)}
        if self.is_training:
            tensors |= {f"momentum.{name}": tensor for name, tensor in self.momentum.tensors().items()}
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.online.load_tensors(tensors)
        self.queues.load_state_dict(tensors_with_prefix("queues.", tensors))
        self.trained_tasks = int(tensors["tasks"])
        momentum = tensors_with_prefix("momentum.", tensors)
        if momentum:
            self.momentum.load_tensors(momentum)

    # -- internal ---------------------------------------------------------------------------------------

    def _topology_losses(
        self, current: tuple[Tensor, Tensor], previous: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Compute L_c and L_s (eqs. 7 and 9) from the query and video vectors of both networks."""
        (queries, videos), (old_queries, old_videos) = current, previous
        scale = self.config.logit_scale
        across = topology_loss(videos @ queries.T, old_videos @ old_queries.T, scale)
        back = topology_loss(queries @ videos.T, old_queries @ old_videos.T, scale)
        among_videos = topology_loss(videos @ videos.T, old_videos @ old_videos.T, scale, suppress=True)
        among_texts = topology_loss(queries @ queries.T, old_queries @ old_queries.T, scale, suppress=True)
        return (across + back) / 2, (among_videos + among_texts) / 2

    def _masked_language_losses(
        self, ids: Tensor, tokens: Tensor, token_keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute equations 2 (targets: masked words) and 5 (targets: the momentum networks' predictions)."""
        end = self.model.end_of_text(ids)
        inputs, selected, masked = mask_words(ids, end, self.config.masked_words, self.model.word_ids)
        predicted = self.online.predict(inputs, masked, selected, end, tokens)
        with torch.no_grad():
            targets = self.momentum.predict(inputs, masked, selected, end, token_keys).softmax(dim=-1)
        count = selected.sum().clamp(min=1)  # captions without words have no targets
        hard = F.cross_entropy(predicted, ids[selected], reduction="sum") / count
        soft = F.cross_entropy(predicted, targets, reduction="sum") / count
        return hard, soft


def momentum_contrast_loss(
    queries: Tensor, videos: Tensor, query_keys: Tensor, video_keys: Tensor, scale: float
) -> Tensor:
    """Compute L_ita^c (eq. 4) in both directions, from vectors ``[B, D]`` of the trained networks, and keys
    ``[B+K, D]`` of the momentum networks, the batch's B first.
    """
    truth = torch.arange(len(queries), device=queries.device)
    to_text = F.cross_entropy(scale * videos @ query_keys.T, truth)
    to_video = F.cross_entropy(scale * queries @ video_keys.T, truth)
    return (to_text + to_video) / 2


def topology_loss(current: Tensor, previous: Tensor, scale: float, *, suppress: bool = False) -> Tensor:
    """Compute H(P_{θ_{t-1}}, P_{θ_t}), the cross-entropy between similarities within a batch (eqs. 6 to 9).

    The published code uses the divergence instead: the same gradient, and a value that lacks the targets' entropy.
    Similarities ``[B, B]`` are from the trained and the previous networks; ``suppress`` excludes each sample's
    similarity to itself (section 4.3).
    """
    if suppress:
        itself = torch.eye(len(current), dtype=torch.bool, device=current.device)
        current, previous = (matrix.masked_fill(itself, _SUPPRESSED) for matrix in (current, previous))
    return F.cross_entropy(scale * current, (scale * previous).softmax(dim=-1))


def mask_words(ids: Tensor, end: Tensor, share: float, words: range) -> tuple[Tensor, Tensor, Tensor]:
    """Select words to predict, as BERT does: a random ``share``, at least one per caption.

    Of the selected words, 80 % are masked, 10 % are replaced by one of ``words`` at random, and 10 % stay unchanged.
    Token IDs ``[B, L]``, which end at the positions ``[B]`` of the end-of-text token, give the input IDs, the mask of
    selected words, and that of masked words, each ``[B, L]``.
    """
    position = torch.arange(ids.shape[1], device=ids.device)
    is_word = (position > 0) & (position < end.unsqueeze(1))
    draw = torch.rand(ids.shape).to(ids.device).masked_fill(~is_word, 1)
    selected = is_word & ((draw < share) | (draw == draw.amin(dim=1, keepdim=True)))
    treatment = torch.rand(ids.shape).to(ids.device)
    masked = selected & (treatment < _MASKED)
    replaced = selected & ~masked & (treatment < _MASKED + _REPLACED)
    random_ids = torch.randint(words.start, words.stop, ids.shape).to(ids.device)
    return torch.where(replaced, random_ids, ids), selected, masked


class _Networks(nn.Module):
    """All networks that equation 3 denotes by θ."""

    def __init__(self, towers: Backbone, fusion: FusionEncoder | None) -> None:
        super().__init__()
        self.towers = towers
        self.fusion = fusion

    def frozen_copy(self) -> _Networks:
        return _Networks(self.towers.clone(), copy.deepcopy(self.fusion)).requires_grad_(False)

    def encode(self, ids: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode unit query and video vectors ``[B, dim]``, and video states ``[B, M, P+1, visual_width]``."""
        tokens = frame_states(self.towers, frames)
        return encode_texts(self.towers, ids)[0], self.towers.pool_frames(tokens)[0], tokens

    def predict(
        self, inputs: Tensor, masked: Tensor, selected: Tensor, end: Tensor, tokens: Tensor
    ) -> Tensor:
        """Compute logits ``[k, V]`` for the k selected words."""
        if self.fusion is None:
            raise AssertionError("masked_language is off, so there is no fusion encoder")
        embedded = self.fusion.embed_masked(self.towers, inputs, masked)
        fused = self.fusion.fuse(self.towers, embedded, end, tokens)
        return self.fusion.predict_words(fused[selected], self.towers.token_embedding.weight)

    def tensors(self) -> dict[str, Tensor]:
        fusion = self.fusion.state_dict() if self.fusion is not None else {}
        return {**self.towers.tensors(), **{f"fusion.{name}": tensor for name, tensor in fusion.items()}}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.towers.load_tensors({n: t for n, t in tensors.items() if n.startswith("clip.")})
        if self.fusion is not None:
            self.fusion.load_state_dict(tensors_with_prefix("fusion.", tensors))
