"""A multi-modal encoder on top of both towers: a caption's words attend to its video (ctp, section 4.1).

In each layer, the words attend to each other in both directions, then to the video, then pass an MLP. The states
predict masked words, and the state at the end of the text represents the pair.

Differences from the paper's f_m, the last six layers of BERT:

- The layers start from random weights and normalize before each step, as CLIP's do.
- CLIP's text tower is causal, so only these layers let a word attend to later ones.
- CLIP has neither [MASK] nor [CLS]: a learned vector replaces a masked word, and the end-of-text token, whose state
  depends on the whole caption, represents the pair.
- The paper uses single images. Here words attend to the patches of all frames, marked by a learned vector per frame.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.tower_computation import encode_in_parts, forward_precision, open_block
from models.encoders.tower_forward import batch_encoder, frame_tokens, run_text_blocks

_INITIAL_STD = 0.02  # as for BERT's embeddings


class FusionEncoder(nn.Module):
    """The multi-modal encoder f_m with its masked-language head, which predicts the tokens of a vocabulary."""

    def __init__(
        self, width: int, visual_width: int, heads: int, *, layers: int, frames: int, vocabulary: int
    ) -> None:
        super().__init__()
        # Replaces the token embedding of a masked word.
        self.mask = nn.Parameter(_INITIAL_STD * torch.randn(width))
        self.times = nn.Parameter(_INITIAL_STD * torch.randn(frames, 1, visual_width))  # temporal embedding
        self.layers = nn.ModuleList(_FusionLayer(width, visual_width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, texts: Tensor, end: Tensor, videos: Tensor) -> Tensor:
        """Compute the words' states after the last layer, ``[n, L, width]``, from the towers' normalized states: texts
        ``[n, L, width]`` and videos ``[n, M, P+1, visual_width]``. After the position ``end [n]`` of its last token, a
        text is padded.
        """
        is_padding = torch.arange(texts.shape[1], device=texts.device) > end.unsqueeze(1)
        tokens = (videos + self.times).flatten(1, 2)
        hidden = texts
        with forward_precision(texts.device):
            for layer in self.layers:
                hidden = layer(hidden, is_padding, tokens)
        return cast(Tensor, self.norm(hidden.float()))

    def predict_words(self, states: Tensor, embedding: Tensor) -> Tensor:
        """Predict words from masked words' states ``[k, width]``, as logits ``[k, V]``; the text tower's token
        embeddings ``[V, width]`` are the classifier, as in BERT.
        """
        with forward_precision(states.device):
            logits = F.linear(self.head(states), embedding, self.bias)
        return logits.float()

    def embed_masked(self, backbone: Backbone, ids: Tensor, masked: Tensor) -> Tensor:
        """Embed token IDs ``[n, L]``, some of them ``masked [n, L]``, with their positions, ``[n, L, width]``."""
        words = torch.where(masked.unsqueeze(-1), self.mask, backbone.token_embedding(ids))
        return backbone.embed_words(words)

    def fuse(self, backbone: Backbone, embedded: Tensor, end: Tensor, tokens: Tensor) -> Tensor:
        """Fuse token and position embeddings ``[n, L, width]`` of texts that end at ``end [n]`` with frame states from
        :func:`frame_states`, to states ``[n, L, width]``.
        """

        def encode(embedded: Tensor, end: Tensor, tokens: Tensor) -> tuple[Tensor]:
            texts = backbone.text.ln_final(text_states(backbone, embedded, end))
            return (self(texts, end, backbone.clip.visual.ln_post(tokens)),)

        return encode_in_parts(encode, embedded, end, tokens)[0]


def create_fusion_encoder(backbone: Backbone, layers: int) -> FusionEncoder:
    """Create a multi-modal encoder for a backbone, with random weights; raise BackboneUnsupported for closed blocks."""
    return FusionEncoder(
        backbone.text_width,
        backbone.feature_dim,
        open_block(backbone.text_blocks[0]).heads,
        layers=layers,
        frames=backbone.spec.frames,
        vocabulary=backbone.vocabulary,
    )


def frame_states(backbone: Backbone, frames: Tensor) -> Tensor:
    """Compute the frames' states ``[n, M, P+1, visual_width]`` after the image tower's last block, from
    ``uint8 [n, M, H, W, 3]`` or tokens before the first block; :meth:`Backbone.pool_frames` turns them into video
    vectors.
    """

    def encode(part: Tensor) -> tuple[Tensor]:
        with forward_precision(backbone.device):
            tokens = frame_tokens(backbone, part)
            flat = tokens.flatten(0, 1)
            for block in backbone.visual_blocks:
                flat = block(flat)
        return (flat.float().view(tokens.shape),)

    return batch_encoder.get()(encode, frames)[0]


def text_states(backbone: Backbone, embedded: Tensor, end: Tensor) -> Tensor:
    """Compute the states ``[n, L, width]`` after the text tower's last block, from embeddings ``[n, L, width]`` of
    texts that end at ``end [n]``; :meth:`Backbone.pool_text` turns them into text vectors.
    """
    with forward_precision(backbone.device):
        hidden = run_text_blocks(backbone, embedded.unsqueeze(0), end)[0]
    return hidden.float()


class _FusionLayer(nn.Module):
    """Attention among the words, attention to the video, and an MLP, each with a residual connection."""

    def __init__(self, width: int, visual_width: int, heads: int) -> None:
        super().__init__()
        self.norm_words = nn.LayerNorm(width)
        self.words = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_video = nn.LayerNorm(width)
        self.video = nn.MultiheadAttention(
            width, heads, kdim=visual_width, vdim=visual_width, batch_first=True
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor, is_padding: Tensor, tokens: Tensor) -> Tensor:
        words = self.norm_words(hidden)
        hidden = hidden + self.words(words, words, words, key_padding_mask=is_padding, need_weights=False)[0]
        hidden = hidden + self.video(self.norm_video(hidden), tokens, tokens, need_weights=False)[0]
        return hidden + cast(Tensor, self.mlp(hidden))
