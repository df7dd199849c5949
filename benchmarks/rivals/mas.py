"""MAS: memory aware synapses (Aljundi et al. 2018, "Memory aware synapses: learning what (not) to forget").

A weight's importance is how sensitive the network's output is to it: the mean magnitude, over a task's samples, of the
gradient of the output's squared norm. No label is involved, so each tower is measured on its own samples: the image
tower on videos, the text tower on captions (continual-cross-modal-retrieval, equation 6). The importances of all tasks
are added up.

Differences from equation 6: taken literally, it gives zero, because embeddings have unit length in the paper and here,
and a constant has no gradient. The output is therefore taken before normalization; for a video, it is the mean over its
frames. Equation 6 also lacks the magnitude bars in Aljundi et al., equation 3, without which the gradients of different
samples would cancel each other. The norm of the similarity matrix, an alternative, is not the output of one branch, as
the paper requires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.shared.weight_penalty import (
    WeightPenaltyConfig,
    WeightPenaltyMethod,
    add_importance,
    mean_gradients,
)
from trainer.task_data import Pair, load_frames


class MasConfig(WeightPenaltyConfig):
    """Settings of MAS."""

    penalty: float = Field(
        default=2.0,
        ge=0,
        le=1e12,
        description="λ; twice that of Aljundi et al., whose penalty has no factor 1/2",
    )


class Mas(WeightPenaltyMethod):
    """Fine-tuning with the sensitivity of the outputs as importance."""

    name = "mas"
    config_class = MasConfig
    config: MasConfig

    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute Ω plus equation 6 for both branches."""
        weights = self.penalized_parameters()
        clips = dict.fromkeys(pair.clip for pair in pairs)  # each video once, even with several captions
        video_norms = (_squared_video_norm(self.model, load_frames([clip])) for clip in clips)
        text_norms = (_squared_text_norm(self.model, [pair.caption]) for pair in pairs)
        video_part, text_part = (
            mean_gradients(norms, weights, torch.abs) for norms in (video_norms, text_norms)
        )
        return add_importance(self.importance, {name: video_part[name] + text_part[name] for name in weights})


def _squared_video_norm(model: Backbone, frames: Tensor) -> Tensor:
    """Sum ‖f(x)‖², before normalization, over videos ``uint8 [n, M, H, W, 3]``."""
    visual = model.clip.visual
    classes = _layer_output(visual.ln_post, lambda: encode_frames(model, frames))  # [n, M, width]
    return (classes @ visual.proj).mean(dim=1).square().sum()


def _squared_text_norm(model: Backbone, texts: Sequence[str]) -> Tensor:
    """Sum ‖g(y)‖², before normalization, over texts."""
    # [1, n, width]
    ends = _layer_output(model.text.ln_final, lambda: encode_texts(model, model.tokenize(texts)))
    projection = model.text.text_projection
    projected = projection(ends) if isinstance(projection, nn.Linear) else ends @ projection
    return projected.square().sum()


def _layer_output(layer: nn.Module, forward: Callable[[], object]) -> Tensor:
    """Capture a layer's last output while ``forward`` runs."""
    outputs: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        forward()
    finally:
        handle.remove()
    return outputs[-1]
