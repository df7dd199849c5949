"""MAS: memory aware synapses (Aljundi et al. 2018, "Memory aware synapses: learning what (not) to forget").

A weight matters as much as the output of the network depends on it: the mean magnitude, over the samples of a
task, of the gradient of the output's squared length. No label takes part, so that each tower is judged by its own
samples: the image tower by videos, the text tower by captions (continual-cross-modal-retrieval, equation 6).
Importances add up from task to task.

Equation 6 read to the letter gives nothing: the paper's embeddings have unit length, and so have ours, and a
constant has no gradient. The output is therefore taken before it is brought to unit length; a video's is the mean
over its frames, which is what is normalised. And equation 6 has lost the magnitude bars of Aljundi et al.,
equation 3, without which the gradients of samples would cancel each other. The similarity matrix, whose norm
would be another way out, is no output of one branch, as the paper wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.shared.weight_penalty import Penalty, PenaltyConfig, mean_gradients
from trainer.task_data import Pair, load_frames

__all__ = ["Mas", "MasConfig", "squared_text_length", "squared_video_length"]


class MasConfig(PenaltyConfig):
    """Settings of MAS."""

    penalty: float = Field(
        default=2.0, ge=0, le=1e12, description="λ; twice that of Aljundi et al., whose penalty has no half"
    )


class Mas(Penalty):
    """Fine-tuning, held back by what the outputs depend on."""

    name = "mas"
    config_class = MasConfig
    config: MasConfig

    def consolidate(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Equation 6, for both branches."""
        held = self.held()
        clips = dict.fromkeys(pair.clip for pair in pairs)  # each video once, however many captions it has
        videos = (squared_video_length(self.model, load_frames([clip])) for clip in clips)
        texts = (squared_text_length(self.model, [pair.caption]) for pair in pairs)
        of_videos, of_texts = (mean_gradients(lengths, held, torch.abs) for lengths in (videos, texts))
        earlier = self.importance
        new = {name: of_videos[name] + of_texts[name] for name in held}
        return {name: earlier[name] + found if name in earlier else found for name, found in new.items()}


def squared_video_length(model: Backbone, frames: Tensor) -> Tensor:
    """Sum of ‖f(x)‖² over videos ``uint8 [n, M, H, W, 3]``, before they are brought to unit length."""
    visual = model.clip.visual
    classes = _seen(visual.ln_post, lambda: encode_frames(model, frames))  # [n, M, width]
    return (classes @ visual.proj).mean(dim=1).square().sum()


def squared_text_length(model: Backbone, texts: Sequence[str]) -> Tensor:
    """Sum of ‖g(y)‖² over texts, before they are brought to unit length."""
    ends = _seen(model.text.ln_final, lambda: encode_texts(model, model.tokenize(texts)))  # [1, n, width]
    projection = model.text.text_projection
    projected = projection(ends) if isinstance(projection, nn.Linear) else ends @ projection
    return projected.square().sum()


def _seen(layer: nn.Module, forward: Callable[[], object]) -> Tensor:
    """What a layer gives while ``forward`` runs."""
    outputs: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        forward()
    finally:
        handle.remove()
    return outputs[-1]
