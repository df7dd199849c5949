"""Continual cross-modal retrieval: why two branches forget, and what helps (continual-cross-modal-retrieval).

Two branches embed videos and texts; a triplet loss ranks both ways (eq. 3). Against forgetting: penalties on
important weights (eqs. 4 to 6); a top layer that both branches share, so that they cannot drift apart there
(section 5.2); one model per direction of retrieval, which holds on to the branch of its queries alone (section
5.3); and stored vectors of earlier tasks as negatives (section 5.4, which the paper tried in vain). Indexing old
videos again or not, telling the task or not, and the direction are matters of evaluation.

What differs: the branches are CLIP's towers, trained whole, in place of two layers with dropout on frozen
features. The loss is a mean over triplets in place of a sum, and equation 5 takes the gradients of small batches
of them. ``contrastive`` is CLIP's loss, not that of Siamese networks, which the paper does not train with. The
towers' last projections may differ in width, so that they cannot be one matrix: with a shared layer they stay as
they were pre-trained, and the layer follows them, the identity at first. It is linear, so a release holds plain
towers with the layer multiplied into both projections. Stored vectors are of videos alone, and so are the
negatives of section 5.4. On MAS see ``trainer.methods.mas``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.mas import squared_text_length, squared_video_length
from trainer.methods.shared.weight_penalty import Penalty, PenaltyConfig, mean_gradients
from trainer.task_data import Pair, load_frames

__all__ = ["Ccmr", "CcmrConfig", "distances", "ranking_loss"]

_SMALL = 1e-6  # squared distance below which two vectors count as one: the root has no gradient at zero


class CcmrConfig(PenaltyConfig):
    """Settings of continual cross-modal retrieval; defaults are those of the paper, section 6."""

    objective: Literal["triplet", "contrastive"] = Field(
        default="triplet", description="equation 3, or CLIP's own loss within the batch"
    )
    margin: float = Field(default=0.05, gt=0, le=2, description="m of equation 3")
    video_to_text: float = Field(default=1.0, ge=0, le=100, description="λ1 of equation 3")
    text_to_video: float = Field(default=1.5, ge=0, le=100, description="λ2 of equation 3")
    hard_negatives: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="nearest negatives of a pair that count; 0: all, as equation 3 reads",
    )
    cross_task_negatives: bool = Field(
        default=False,
        description="stored videos of earlier tasks are negatives of the captions (section 5.4)",
    )
    regulariser: Literal["none", "ewc", "mas"] = Field(
        default="ewc", description="equation 5 or 6, or neither"
    )
    regularised: Literal["both", "text", "video"] = Field(
        default="text",
        description="branches that are held: both; or, decoupled, that of the queries, text for a model that "
        "finds videos and video for one that finds texts (section 5.3)",
    )
    penalty: float = Field(default=2e6, ge=0, le=1e12, description="λ; twice λ3, whose penalty has no half")
    fisher_batch: int = Field(
        default=8, ge=2, le=1024, description="pairs per squared gradient of equation 5"
    )
    fisher_decay: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of earlier tasks' importance that equation 5 keeps; 0: none, as it is printed",
    )
    tied: bool = Field(default=False, description="both branches share a top layer (section 5.2)")

    @model_validator(mode="after")
    def _negatives_have_a_margin(self) -> CcmrConfig:
        if self.cross_task_negatives and self.objective != "triplet":
            raise ValueError("cross_task_negatives needs objective: triplet")
        return self


class Ccmr(Penalty):
    """Two branches that rank both ways, and what holds them together."""

    name = "ccmr"
    config_class = CcmrConfig
    config: CcmrConfig
    architecture_settings = ("tied", "regulariser", "regularised")

    def __init__(self, backbone: Backbone, config: CcmrConfig) -> None:
        super().__init__(backbone, config)
        if config.tied:
            self.model.register_parameter(
                "top", nn.Parameter(torch.eye(backbone.dim, device=backbone.device))
            )
        self.model.requires_grad_(False)

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Open both branches; below a shared top layer, the projections of their own stay as they are."""
        super().begin_task(task_id, name, trained=trained)
        if self.config.tied:
            for parameter_name, parameter in self.model.named_parameters():
                parameter.requires_grad_(parameter.requires_grad and not _is_projection(parameter_name))

    def task_loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """L_T, and pseudo cross-task negatives where they are asked for."""
        queries, videos = self.embed(frames, texts)
        loss = self.contrast(queries, videos)
        if self.config.cross_task_negatives and references is not None:
            own = distances(queries, videos).diagonal()
            loss = loss + self.config.text_to_video * ranking_loss(
                own, distances(queries, references), self.config.margin, self.config.hard_negatives
            )
        return loss

    def embed(
        self, frames: Tensor, texts: Sequence[str], model: Backbone | None = None
    ) -> tuple[Tensor, Tensor]:
        model = model or self.model
        queries, videos = super().embed(frames, texts, model)
        return _through_top(model, queries), _through_top(model, videos)

    def contrast(self, queries: Tensor, videos: Tensor) -> Tensor:
        """Equation 3 within the batch, or CLIP's own loss."""
        config = self.config
        if config.objective == "contrastive":
            return super().contrast(queries, videos)
        apart = distances(videos, queries)
        own, others = apart.diagonal(), ~torch.eye(len(apart), dtype=torch.bool, device=apart.device)
        to_text, to_video = (d[others].view(len(d), -1) for d in (apart, apart.T))
        loss = config.video_to_text * ranking_loss(own, to_text, config.margin, config.hard_negatives)
        return loss + config.text_to_video * ranking_loss(own, to_video, config.margin, config.hard_negatives)

    # -- importance -------------------------------------------------------------------------------------

    def holds(self, name: str) -> bool:
        """Equation 4, or one of its two sums; the shared layer belongs to both branches."""
        if self.config.regulariser == "none":
            return False
        branch = "video" if name.startswith("clip.visual.") else "text"
        return name == "top" or self.config.regularised in ("both", branch)

    def consolidate(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Θ and Ω of equation 4."""
        if self.config.regulariser == "none":
            return {}
        new, kept = (
            (self._fisher(pairs), self.config.fisher_decay)
            if self.config.regulariser == "ewc"
            else (self._sensitivity(pairs), 1.0)
        )
        earlier = self.importance
        return {
            name: kept * earlier[name] + found if name in earlier else found for name, found in new.items()
        }

    def _fisher(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Equation 5: squared gradients of the loss of small batches of triplets."""
        examples = self.small_batches(pairs, self.config.fisher_batch)
        losses = (self.task_loss(frames, texts, None) for frames, texts in examples)
        return mean_gradients(losses, self.held(), torch.square)

    def _sensitivity(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """The expectation of equation 6, over the samples of the branches that are held."""
        held = self.held()
        sensitivity = {name: torch.zeros_like(weight) for name, weight in held.items()}
        clips = dict.fromkeys(pair.clip for pair in pairs)  # each video once, however many captions it has
        branches = {
            "video": (self._squared_video_length(load_frames([clip])) for clip in clips),
            "text": (self._squared_text_length([pair.caption]) for pair in pairs),
        }
        for branch, lengths in branches.items():
            if self.config.regularised in ("both", branch):
                for name, found in mean_gradients(lengths, held, torch.abs).items():
                    sensitivity[name] += found
        return sensitivity

    def _squared_video_length(self, frames: Tensor) -> Tensor:
        """‖f(x)‖² of one video, before it is brought to unit length: ‖xW‖² = ‖x‖² ‖x/‖x‖ W‖² with a top layer W."""
        length, top = squared_video_length(self.model, frames), _top(self.model)
        return length if top is None else length * (encode_frames(self.model, frames)[0] @ top).square().sum()

    def _squared_text_length(self, texts: Sequence[str]) -> Tensor:
        """‖g(y)‖² of one text, likewise."""
        length, top = squared_text_length(self.model, texts), _top(self.model)
        if top is None:
            return length
        return length * (encode_texts(self.model, self.model.tokenize(texts))[0] @ top).square().sum()

    # -- the shared top layer ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """The towers with the shared layer inside their projections, as queries are served; and the layer."""
        tensors, top = super().state_dict(), _top(self.model)
        if top is None:
            return tensors
        folded = {name: _fold(name, t, top.detach()) for name, t in tensors.items() if _is_projection(name)}
        return {**tensors, **folded, "top": top.detach()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        top = _top(self.model)
        if top is not None:
            top.data.copy_(tensors["top"])
            own = {name: t for name, t in self.backbone.tensors().items() if _is_projection(name)}
            tensors = {name: t for name, t in {**tensors, **own}.items() if name != "top"}
        super().load_state_dict(tensors)

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return _through_top(self.model, super().encode_videos(frames))

    def video_tensors(self) -> dict[str, Tensor]:
        return {name: t for name, t in self.state_dict().items() if name.startswith("clip.visual.")}


def _top(model: Backbone) -> Tensor | None:
    """The layer ``[dim, dim]`` that both branches share, where there is one."""
    return getattr(model, "top", None)


def _through_top(model: Backbone, vectors: Tensor) -> Tensor:
    """Unit vectors ``[n, dim]`` after the shared layer; lengths do not matter to it, since it has no bias."""
    top = _top(model)
    return vectors if top is None else F.normalize(vectors @ top, dim=-1)


def _is_projection(name: str) -> bool:
    """Whether a weight is the last projection of a tower."""
    return name == "clip.visual.proj" or (name.startswith("clip.") and "text_projection" in name)


def _fold(name: str, tensor: Tensor, top: Tensor) -> Tensor:
    """A projection followed by the shared layer; open_clip has linear modules among them, which are transposed."""
    return top.T @ tensor if name.endswith(".weight") else tensor @ top


def ranking_loss(own: Tensor, negatives: Tensor, margin: float, hard: int = 0) -> Tensor:
    """One direction of equation 3: every negative is to be a margin farther away than what belongs to the query.

    A mean over triplets in place of the sum, so that the loss is the same for batches of every size.

    Args:
        own: ``[B]`` distances of queries to what belongs to them.
        negatives: ``[B, N]`` distances of queries to what does not.
        margin: m.
        hard: count only so many of the nearest negatives; 0: all.
    """
    if hard:
        negatives = negatives.topk(min(hard, negatives.shape[1]), largest=False).values
    if not negatives.numel():
        return 0 * own.sum()
    return (own.unsqueeze(1) + margin - negatives).relu().mean()


def distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Euclidean distances ``[n, m]`` between unit vectors ``[n, D]`` and ``[m, D]`` (section 3.1)."""
    return (2 - 2 * rows @ columns.T).clamp(min=_SMALL).sqrt()
