"""Methods that replay pairs of past tasks: ER, CTP + ER, DER, iCaRL, LUCIR and LUMP."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.distributions import Beta
from torch.nn import functional as F

from benchmarks.rivals.distillation import similarity_distillation_loss
from benchmarks.rivals.replay_memory import FillRule, MemoryConfig, ReplayConfig, ReplayMethod
from trainer.methods.ctp import Ctp, CtpConfig


class Er(ReplayMethod):
    """ER-ring: experience replay (Chaudhry et al. 2019, "On tiny episodic memories in continual learning").

    Every step learns from the union of the current batch and a batch from the memory (algorithm 1 takes the gradient
    over both); bmu-moco describes the past pairs as "simply used as training samples". With a contrastive loss, the
    union also makes current and past pairs each other's negatives.

    For differences from both papers see ``replay_memory``.
    """

    name = "er"
    config_class = ReplayConfig
    config: ReplayConfig

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        return self.contrastive_loss(*self.encode(*self.union_batch(frames, texts, self.config.replay_batch)))


class CtpErConfig(CtpConfig, ReplayConfig):
    """Settings of CTP with experience replay."""


class CtpEr(ReplayMethod, Ctp):
    """CTP + ER: CTP with experience replay (ctp, table 1).

    The memory of ``er`` adds past pairs to every batch, and the union has all of CTP's losses (equation 10): the
    previous and the momentum networks encode past pairs, too, and their keys enter the queues, as in the published
    code.

    Difference from the paper: the published code fills the memory by a reservoir after every task and adds it to the
    next task's training pairs. Here a ring is the default, and every batch has a fixed number of past pairs, as for
    ``er``. Other differences are in ``trainer.methods.ctp`` and ``replay_memory``.
    """

    name = "ctp_er"
    config_class = CtpErConfig
    config: CtpErConfig
    architecture_settings = (*Ctp.architecture_settings, *ReplayMethod.architecture_settings)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute equation 10 of ctp over current and past pairs."""
        union, ids = self.union_batch(frames, texts, self.config.replay_batch)
        return self.pair_loss(union, self.trim(ids))


class DerConfig(ReplayConfig):
    """Settings of DER and DER++."""

    fill: FillRule = "reservoir"
    # α, weight of the responses; these are logits, which grow with logit_scale
    response: float = Field(default=0.3, ge=0, le=100)
    # β, weight of the pairs themselves; 0: DER, above: DER++
    replay: float = Field(default=0.0, ge=0, le=100)


class Der(ReplayMethod):
    """DER and DER++: dark experience replay (Buzzega et al. 2020, "Dark experience for general continual learning").

    The memory stores training pairs together with the model's responses to them at that time. DER penalizes the mean
    squared difference between current and stored responses with weight α. DER++ also learns the pairs themselves again,
    from a second draw, with weight β.

    A classifier's response is a row of logits. The response of two towers is a matrix of retrieval logits, the scaled
    similarities between a batch of texts and a batch of videos, as in bmu-moco. Logits against the original batch could
    not be recomputed, so the memory stores both vectors of a pair, and compares the logits among the drawn pairs,
    current against stored. bmu-moco keeps them in a ring (``fill: ring``), the original in a reservoir, whose responses
    come from the whole training path; the default is the reservoir.

    Other differences, notably that pairs from the current task are not drawn, are in ``replay_memory``.
    """

    name = "der"
    config_class = DerConfig
    config: DerConfig
    stores_vectors = True

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the task's own loss + α · response loss + β · loss of past pairs."""
        config = self.config
        ids = self.tokenize(texts)
        vectors = self.encode(frames, ids)
        self.record_batch(frames, ids, vectors)
        loss = self.contrastive_loss(*vectors)
        past = self.sample_past(config.replay_batch, frames.device)
        if past is not None and config.response > 0:
            current = self.encode(past["frames"], past["ids"])
            stored = past["queries"], past["videos"]
            loss = loss + config.response * response_loss(current, stored, config.logit_scale)
        again = self.sample_past(config.replay_batch, frames.device) if config.replay > 0 else None
        if again is not None:
            vectors = self.encode(again["frames"], again["ids"])
            loss = loss + config.replay * self.contrastive_loss(*vectors)
        return loss


def response_loss(current: tuple[Tensor, Tensor], stored: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """Compute the mean squared difference between retrieval logits of pairs, from vectors ``[B, D]`` each."""
    return F.mse_loss(scale * current[0] @ current[1].T, scale * stored[0] @ stored[1].T)


class IcarlConfig(ReplayConfig):
    """Settings of iCaRL."""

    fill: FillRule = "herding"
    distillation: float = Field(default=1.0, ge=0, le=1000)  # λ; 1 in both papers


class Icarl(ReplayMethod):
    """iCaRL: incremental classifier and representation learning (Rebuffi et al. 2017), for retrieval; a baseline of
    ctp.

    It has three parts. Exemplars are selected by herding, and each task has an equal share of the memory (algorithms 4
    and 5, with tasks for classes). Every step learns from the union of current and past pairs, and the outputs of the
    model from before the task on this union are soft targets (algorithm 3). A query is answered by the nearest class
    mean (algorithm 1).

    Without classes, the loss is ctp's adaptation: L = L_contrast + λ L_distill, where the contrastive loss replaces the
    classification loss, and L_distill the terms for old classes,

        L_distill = −½ Σ_i (p̄_i · log p_i + p̄ᵀ_i · log pᵀ_i) / B,   p_i = softmax_j(⟨q_i, v_j⟩ / τ),

    over the B pairs in the union, with p̄ by the previous model and pᵀ over the queries for a video. A gallery has one
    video per "class", so the nearest class mean is the nearest video, which is the search itself.

    Differences from the papers: iCaRL has a sigmoid per class and no hard labels for old classes; here current and past
    pairs have both losses, as in ctp. ctp's published code distills distributions over the coordinates of each vector;
    here the similarities within the batch are distilled, as in ``lwf``. Stored videos are not encoded again after a
    task, while iCaRL computes class means anew. See also ``replay_memory``.
    """

    name = "icarl"
    config_class = IcarlConfig
    config: IcarlConfig
    needs_previous_model = True

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute L_contrast + λ L_distill."""
        config = self.config
        union = self.union_batch(frames, texts, config.replay_batch)
        current = self.encode(*union)
        loss = self.contrastive_loss(*current)
        if self.previous_model is None:
            return loss
        previous = self.encode_as_before(*union)
        distilled = similarity_distillation_loss(current, previous, config.logit_scale, temperature=1.0)
        return loss + config.distillation * distilled


class LucirConfig(ReplayConfig):
    """Settings of LUCIR; the defaults are those of its paper on CIFAR-100."""

    fill: FillRule = "herding"
    less_forget: float = Field(default=5.0, ge=0, le=1000)  # λ_base, weight of the less-forget constraint
    ranking: float = Field(default=1.0, ge=0, le=100)  # weight of the margin ranking loss
    margin: float = Field(default=0.5, gt=0, le=2)  # m, a difference of cosines
    hard_negatives: int = Field(default=2, ge=1, le=1024)  # K, current partners per past pair


class Lucir(ReplayMethod):
    """LUCIR: learning a unified classifier incrementally via rebalancing (Hou et al. 2019); a baseline of ctp.

    Without classes, a query's vector replaces the class embedding of its video, and a video's vector that of its query.
    With unit vectors q_i of queries and v_i of videos in the union of current and past pairs:

    - Cosine normalization: scores are cosines with a scale, as in every method here.
    - Less-forget constraint: L_G = ½ mean_i[(1 − ⟨q_i, q_i*⟩) + (1 − ⟨v_i, v_i*⟩)], with vectors q*, v* by the model
      from before the task. Its weight is λ = λ_base √(|C_o| / |C_n|) as in the published code, with tasks for classes:
      the root of the number of tasks in the memory.
    - Inter-class separation: L_mr = ½ mean over past pairs i of Σ_k max(m − ⟨q_i, v_i⟩ + ⟨q_i, v^k⟩, 0), plus the same
      with q and v exchanged; v^1 … v^K are the current videos nearest to q_i.

    The loss is L_contrast + λ L_G + L_mr. The memory is filled by herding.

    Differences from the papers: a trained scale and fine-tuning of the classifier on a balanced set have no
    counterpart, since there is no classifier. ctp's published code adapts less: cosine projections, L_G on the states
    of all tokens before the projection with λ = 1, and no L_mr. Here L_G is on the vectors that are searched, as on the
    last features of Hou et al.; ``ranking: 0`` removes L_mr. See also ``replay_memory``.
    """

    name = "lucir"
    config_class = LucirConfig
    config: LucirConfig
    needs_previous_model = True

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Copy the model from before the task, and count the tasks in the memory."""
        super().begin_task(task_id, name, trained=trained)
        past_tasks = len(self.memory.rows()["tasks"].unique())
        self._less_forget_weight = self.config.less_forget * math.sqrt(past_tasks)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute L_contrast + λ L_G + L_mr."""
        config = self.config
        union = self.union_batch(frames, texts, config.replay_batch)
        queries, videos = self.encode(*union)
        loss = self.contrastive_loss(queries, videos)
        if self.previous_model is None:
            return loss
        old_queries, old_videos = self.encode_as_before(*union)
        forgotten = (less_forget_loss(queries, old_queries) + less_forget_loss(videos, old_videos)) / 2
        separation = margin_ranking_loss(queries, videos, len(texts), config.margin, config.hard_negatives)
        return loss + self._less_forget_weight * forgotten + config.ranking * separation


def less_forget_loss(current: Tensor, previous: Tensor) -> Tensor:
    """Compute the mean of 1 − ⟨f, f*⟩ (Hou et al., less-forget constraint) for unit vectors ``[B, dim]``."""
    return 1 - (current * previous).sum(dim=-1).mean()


def margin_ranking_loss(queries: Tensor, videos: Tensor, current: int, margin: float, hardest: int) -> Tensor:
    """Compute the margin ranking loss (Hou et al., inter-class separation), averaged over both retrieval directions.

    Of the pairs of unit vectors ``[B, dim]``, ``current`` are the current task's, and come first. Without past pairs,
    the loss is 0.
    """
    if current == len(queries):
        return queries.new_zeros(())
    similarity = queries @ videos.T
    matching = similarity.diagonal()[current:, None]
    to_video = similarity[current:, :current].topk(min(hardest, current)).values
    to_text = similarity.T[current:, :current].topk(min(hardest, current)).values
    violations = [(margin - matching + others).relu().sum(dim=1).mean() for others in (to_video, to_text)]
    return (violations[0] + violations[1]) / 2


class LumpConfig(MemoryConfig):
    """Settings of LUMP; the defaults are those of its published code."""

    fill: FillRule = "reservoir"
    mixup: float = Field(default=0.4, gt=0, le=100)  # α of the Beta distribution of λ


class Lump(ReplayMethod):
    """LUMP: lifelong unsupervised mixup (Madaan et al. 2022, "Representational continuity for unsupervised continual
    learning").

    From the second task on, every sample is mixed with one from the memory, λ·x + (1 − λ)·x', with one λ ~ Beta(α, α)
    per step, and the loss is that of the mixed samples. Frames are mixed as pixels. Texts cannot be mixed, so their
    vectors are mixed with the same λ and normalized to unit length. A mixed video and its mixed text are a positive
    pair, as in bmu-moco; the other mixed samples in the batch are negatives.

    Differences from the papers: bmu-moco also pushes the mixed samples into its negative queues, and marks LUMP as
    using extra encoders without naming them; plain fine-tuning has neither. The original mixes two augmentations of an
    image; here video and text take their place. A memory smaller than a batch is used more than once. Other differences
    are in ``replay_memory``.
    """

    name = "lump"
    config_class = LumpConfig
    config: LumpConfig

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        past = self.sample_past(len(ids), frames.device)
        if past is None:
            return self.contrastive_loss(*self.encode(frames, ids))
        partners = torch.arange(len(ids)) % len(past["ids"])
        share = float(Beta(self.config.mixup, self.config.mixup).sample())
        mixed = torch.lerp(past["frames"][partners].float(), frames.float(), share).round().byte()
        queries, videos = self.encode(mixed, ids)
        past_queries = self.encode_ids(past["ids"][partners])
        mixed_queries = F.normalize(torch.lerp(past_queries, queries, share), dim=-1)
        return self.contrastive_loss(mixed_queries, videos)
