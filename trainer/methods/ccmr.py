"""CCMR: remedies against forgetting in two branches (continual-cross-modal-retrieval).

Two branches embed videos and texts; a triplet loss ranks in both directions (eq. 3). The remedies: penalties on
important weights (eqs. 4 to 6); a top layer that both branches share, so that they cannot drift apart there (section
5.2); one model per retrieval direction, which protects only its queries' branch (section 5.3); and earlier tasks'
stored vectors as negatives (section 5.4, without success in the paper). Whether old videos are embedded again, whether
the task is known, and the direction are up to the evaluation. The joint bounds of section 6 are this method with the
benchmarks' setting ``jointly: true``, without and with ``mixed_batches: false``.

Differences from the paper: the branches are CLIP's towers, trained completely, instead of two layers with dropout on
frozen features. The loss is a mean over triplets instead of a sum, and equation 5 takes its gradients from small
batches of triplets. ``contrastive`` is CLIP's loss instead of the Siamese one, which the paper does not train with. The
towers' last projections may differ in width and cannot be one matrix; a shared layer therefore follows them, starting
as the identity, and they keep their pre-trained values. The layer is linear, so a release contains plain towers with
the layer multiplied into both projections. Only video vectors are stored, so the negatives of section 5.4 are videos.
For MAS see ``benchmarks.rivals.mas``.
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
from trainer.methods.shared.weight_penalty import (
    WeightPenaltyConfig,
    WeightPenaltyMethod,
    add_importance,
    mean_gradients,
    squared_text_norm,
    squared_video_norm,
)
from trainer.task_data import Pair, load_frames

_MINIMUM_SQUARED_DISTANCE = 1e-6  # the square root has no gradient at zero


class CcmrConfig(WeightPenaltyConfig):
    """Settings of continual cross-modal retrieval; the defaults are those of the paper, section 6."""

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
        description="number of nearest negatives per pair in the loss; 0: all, as in equation 3",
    )
    cross_task_negatives: bool = Field(
        default=False,
        description="contrast captions with earlier tasks' stored videos too (section 5.4)",
    )
    regularizer: Literal["none", "ewc", "mas"] = Field(
        default="ewc", description="equation 5 or 6, or neither"
    )
    regularized: Literal["both", "text", "video"] = Field(
        default="text",
        description="branches with a penalty: both, or only the queries' one: text for a model that retrieves videos, "
        "video for a model that retrieves texts (section 5.3)",
    )
    penalty: float = Field(
        default=2e6, ge=0, le=1e12, description="λ; twice λ3, whose penalty has no factor 1/2"
    )
    fisher_batch: int = Field(
        default=8, ge=2, le=1024, description="pairs per squared gradient of equation 5"
    )
    fisher_decay: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of earlier tasks' importance that equation 5 keeps; 0: none, as printed",
    )
    tied: bool = Field(default=False, description="both branches share a top layer (section 5.2)")

    @model_validator(mode="after")
    def _negatives_have_a_margin(self) -> CcmrConfig:
        if self.cross_task_negatives and self.objective != "triplet":
            raise ValueError("cross_task_negatives needs objective: triplet")
        return self


class Ccmr(WeightPenaltyMethod):
    """Fine-tuning of two branches with a ranking loss in both directions and a weight penalty."""

    name = "ccmr"
    config_class = CcmrConfig
    config: CcmrConfig
    architecture_settings = ("tied", "regularizer", "regularized")

    def __init__(self, backbone: Backbone, config: CcmrConfig) -> None:
        super().__init__(backbone, config)
        if config.tied:
            self.model.register_parameter(
                "top", nn.Parameter(torch.eye(backbone.dim, device=backbone.device))
            )
        self.model.requires_grad_(False)

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Unfreeze both branches; with a shared top layer, their own projections stay frozen."""
        super().begin_task(task_id, name, trained=trained)
        if self.config.tied:
            for parameter_name, parameter in self.model.named_parameters():
                parameter.requires_grad_(parameter.requires_grad and not _is_projection(parameter_name))

    def task_loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute L_T, with pseudo cross-task negatives if enabled."""
        queries, videos = self.embed(frames, texts)
        loss = self.contrastive_loss(queries, videos)
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
        return _apply_top_layer(model, queries), _apply_top_layer(model, videos)

    def contrastive_loss(self, queries: Tensor, videos: Tensor) -> Tensor:
        """Compute equation 3 within the batch, or CLIP's own loss."""
        config = self.config
        if config.objective == "contrastive":
            return super().contrastive_loss(queries, videos)
        matrix = distances(videos, queries)
        own, others = matrix.diagonal(), ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
        to_text, to_video = (d[others].view(len(d), -1) for d in (matrix, matrix.T))
        loss = config.video_to_text * ranking_loss(own, to_text, config.margin, config.hard_negatives)
        return loss + config.text_to_video * ranking_loss(own, to_video, config.margin, config.hard_negatives)

    # -- importance -------------------------------------------------------------------------------------

    def is_penalized(self, name: str) -> bool:
        """Check whether equation 4 penalizes a weight; the shared layer belongs to both branches."""
        if self.config.regularizer == "none":
            return False
        branch = "video" if name.startswith("clip.visual.") else "text"
        return name == "top" or self.config.regularized in ("both", branch)

    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute Θ and Ω of equation 4."""
        if self.config.regularizer == "none":
            return {}
        if self.config.regularizer == "ewc":
            return add_importance(self.importance, self._fisher(pairs), self.config.fisher_decay)
        return add_importance(self.importance, self._sensitivity(pairs))

    def _fisher(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute equation 5: mean squared loss gradients over small batches of triplets."""
        examples = self.small_batches(pairs, self.config.fisher_batch)
        losses = (self.task_loss(frames, texts, None) for frames, texts in examples)
        return mean_gradients(losses, self.penalized_parameters(), torch.square)

    def _sensitivity(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute the expectation of equation 6 over the penalized branches' samples."""
        weights = self.penalized_parameters()
        sensitivity = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        clips = dict.fromkeys(pair.clip for pair in pairs)  # each video once, even with several captions
        branches = {
            "video": (self._squared_video_norm(load_frames([clip])) for clip in clips),
            "text": (self._squared_text_norm([pair.caption]) for pair in pairs),
        }
        for branch, norms in branches.items():
            if self.config.regularized in ("both", branch):
                for name, gradient in mean_gradients(norms, weights, torch.abs).items():
                    sensitivity[name] += gradient
        return sensitivity

    def _squared_video_norm(self, frames: Tensor) -> Tensor:
        """Compute a video's ‖f(x)‖² before normalization: ‖xW‖² = ‖x‖² ‖x/‖x‖ W‖² with a top layer W."""
        norm, top = squared_video_norm(self.model, frames), _top_layer(self.model)
        return norm if top is None else norm * (encode_frames(self.model, frames)[0] @ top).square().sum()

    def _squared_text_norm(self, texts: Sequence[str]) -> Tensor:
        """Compute a text's ‖g(y)‖² before normalization."""
        norm, top = squared_text_norm(self.model, texts), _top_layer(self.model)
        if top is None:
            return norm
        return norm * (encode_texts(self.model, self.model.tokenize(texts))[0] @ top).square().sum()

    # -- the shared top layer ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Collect the towers, with the shared layer multiplied into their projections, and the layer itself."""
        tensors, top = super().state_dict(), _top_layer(self.model)
        if top is None:
            return tensors
        folded = {
            name: _multiply_top_layer(name, t, top.detach())
            for name, t in tensors.items()
            if _is_projection(name)
        }
        return {**tensors, **folded, "top": top.detach()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        top = _top_layer(self.model)
        if top is not None:
            top.data.copy_(tensors["top"])
            own = {name: t for name, t in self.backbone.tensors().items() if _is_projection(name)}
            tensors = {name: t for name, t in {**tensors, **own}.items() if name != "top"}
        super().load_state_dict(tensors)

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return _apply_top_layer(self.model, super().encode_videos(frames))

    def video_tensors(self) -> dict[str, Tensor]:
        return {name: t for name, t in self.state_dict().items() if name.startswith("clip.visual.")}


def _top_layer(model: Backbone) -> Tensor | None:
    """Look up the layer ``[dim, dim]`` that both branches share, or None."""
    return getattr(model, "top", None)


def _apply_top_layer(model: Backbone, vectors: Tensor) -> Tensor:
    """Apply the shared layer, which has no bias, to unit vectors ``[n, dim]`` and normalize."""
    top = _top_layer(model)
    return vectors if top is None else F.normalize(vectors @ top, dim=-1)


def _is_projection(name: str) -> bool:
    """Check whether a weight is a tower's last projection."""
    return name == "clip.visual.proj" or (name.startswith("clip.") and "text_projection" in name)


def _multiply_top_layer(name: str, tensor: Tensor, top: Tensor) -> Tensor:
    """Multiply a projection by the shared layer; a linear module stores its weight transposed."""
    return top.T @ tensor if name.endswith(".weight") else tensor @ top


def ranking_loss(own: Tensor, negatives: Tensor, margin: float, hard: int = 0) -> Tensor:
    """Compute one direction of equation 3: the hinge loss of positive distance + margin − negative distance.

    The loss is a mean over triplets instead of a sum, so that it does not depend on the batch size.

    Args:
        own: ``[B]`` distances from queries to their positives.
        negatives: ``[B, N]`` distances from queries to their negatives.
        hard: Number of nearest negatives in the loss; 0: all.
    """
    if hard:
        negatives = negatives.topk(min(hard, negatives.shape[1]), largest=False).values
    if not negatives.numel():
        return 0 * own.sum()
    return (own.unsqueeze(1) + margin - negatives).relu().mean()


def distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Compute Euclidean distances ``[n, m]`` between unit vectors ``[n, D]`` and ``[m, D]`` (section 3.1)."""
    return (2 - 2 * rows @ columns.T).clamp(min=_MINIMUM_SQUARED_DISTANCE).sqrt()
