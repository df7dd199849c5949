"""BERT as a backbone's text tower, and the text half of the backbone interface.

A text vector is the mean over its tokens, including [CLS] and [SEP] but not padding, projected into the joint space by
one linear layer (bmu-moco, equations 4 to 6). Because the layer is linear, it can be applied after averaging.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.bert_tokenizer import PADDING, TEXT_LENGTH, BertTokenizer, probe_ids
from models.backbones.frozen_tower import EngineUnavailable, FrozenTower, require_similar
from models.backbones.tower_computation import BertBlock, OpenBlock, forward_precision, is_mixed_precision

if TYPE_CHECKING:
    from models.backbones.compiled_towers import BertEngine

_LOGIT_SCALE = math.log(1 / 0.07)  # bmu-moco, section 4.1; ctp, section 5.1


class BertTextTower(nn.Module):
    """A ``BertModel`` without a pooling layer, and its projection ``[width, dim]`` into the joint space.

    By default, no layer ``ln_final`` follows the averaging, since BERT normalizes its states itself.
    """

    def __init__(self, bert: Any, projection: Tensor, ln_final: nn.Module | None = None) -> None:
        super().__init__()
        self.bert: Any = bert
        self.ln_final = ln_final or nn.Identity()  # methods read the projection's input here
        self.text_projection = nn.Parameter(projection)

    @property
    def positional_embedding(self) -> Tensor:
        return cast(Tensor, self.bert.embeddings.position_embeddings.weight[:TEXT_LENGTH])


class CenteredUnitVectors(nn.Module):
    """Normalization to unit length, minus the mean of generic texts."""

    center: Tensor

    def __init__(self, center: Tensor) -> None:
        super().__init__()
        self.register_buffer("center", center)

    def forward(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) - self.center


class Towers(nn.Module):
    """Both towers, structured and named like a CLIP model; ``visual`` has ``ln_post`` and ``proj [width, dim]``."""

    def __init__(self, visual: nn.Module, text: BertTextTower) -> None:
        super().__init__()
        self.visual = visual
        self.text = text
        self.logit_scale = nn.Parameter(torch.tensor(_LOGIT_SCALE))


class BertBackbone(Backbone):
    """A backbone whose text tower is a BERT; subclasses add the image tower."""

    has_open_blocks = False
    has_causal_text = False

    def __init__(
        self,
        name: str,
        clip: Towers,
        tokenizer: BertTokenizer,
        spec: FrameSpec,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(name, clip, tokenizer, spec, mean, std)
        self.text = clip.text
        self._frozen_text = FrozenTower(self._compile_text)

    @property
    def dim(self) -> int:
        return int(self.text.text_projection.shape[1])

    @property
    def token_embedding(self) -> nn.Embedding:
        return cast(nn.Embedding, self.text.bert.get_input_embeddings())

    @property
    def vocabulary(self) -> int:
        return int(self.text.bert.config.vocab_size)

    def freeze_text_tower(self) -> None:
        """Let a compiled engine run the text tower. Its weights must not change afterwards."""
        if not self._frozen_text.is_frozen:
            self._frozen_text = FrozenTower(self._compile_text)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._frozen_text = FrozenTower()
        super().load_tensors(tensors)

    def _compile_text(self) -> BertEngine:
        # Imported on use, so that a broken installation of its library leaves the towers to torch.
        from models.backbones.compiled_towers import BertEngine

        tower, config = self.text, self.text.bert.config
        if config.hidden_act != "gelu":
            raise EngineUnavailable(f"activation {config.hidden_act!r} is not supported")
        weights = {name: weight.numpy() for name, weight in tower.bert.state_dict().items()}
        center = tower.ln_final.center.numpy() if isinstance(tower.ln_final, CenteredUnitVectors) else None
        projection = tower.text_projection.detach().numpy()
        engine = BertEngine(weights, config.num_attention_heads, config.layer_norm_eps, projection, center)
        ids = probe_ids(self.vocabulary)
        with torch.no_grad():
            require_similar(engine(ids), self._text_vectors_in_torch(torch.from_numpy(ids)).numpy())
        return engine

    @property
    def text_blocks(self) -> list[OpenBlock]:
        return [BertBlock(layer) for layer in self.text.bert.encoder.layer]

    @property
    def word_ids(self) -> range:
        """All IDs: BERT replaces a masked word by any other of its vocabulary (Devlin et al., 2019, section 3.1)."""
        return range(self.vocabulary)

    def embed_words(self, words: Tensor) -> Tensor:
        """Add the embeddings of positions and of the only segment to those of tokens, and normalize the sum."""
        return cast(Tensor, self.text.bert.embeddings(inputs_embeds=words.flatten(0, -3)).view(words.shape))

    def text_mask(self, length: int, end: Tensor) -> Tensor | None:
        is_text = torch.arange(length, device=end.device) <= end.unsqueeze(1)
        # On a GPU, reading whether there is padding would wait for the device.
        return None if end.device.type == "cpu" and bool(is_text.all()) else is_text[:, None, None]

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        return torch.from_numpy(self._tokenizer(texts))

    def end_of_text(self, ids: Tensor) -> Tensor:
        """Find [SEP], the last token before the padding, ``[n]``."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return positions.masked_fill(ids == PADDING, 0).amax(dim=-1)

    def text_vectors(self, ids: Tensor) -> Tensor:
        is_float32 = ids.device.type == "cpu" and not is_mixed_precision()
        if is_float32 and (engine := self._frozen_text.engine()) is not None:
            return torch.from_numpy(engine(ids.numpy(), torch.get_num_threads()))
        return self._text_vectors_in_torch(ids)

    def _text_vectors_in_torch(self, ids: Tensor) -> Tensor:
        end = self.end_of_text(ids)
        with forward_precision(self.device):
            # The layers run one by one: for a short text, BertModel would spend a fifth of the time on its mask.
            mask = self.text_mask(ids.shape[1], end)
            states: Tensor = self.text.bert.embeddings(input_ids=ids)
            for layer in self.text.bert.encoder.layer:
                states = layer(states, mask)
        return self.pool_text(states.float(), end)

    def pool_text(self, hidden: Tensor, end: Tensor) -> Tensor:
        """Average states ``[..., n, L, width]`` up to ``end [n]``, and project to unit vectors ``[..., n, dim]``."""
        is_text = torch.arange(hidden.shape[-2], device=hidden.device) <= end.unsqueeze(1)
        mean = (hidden * is_text.unsqueeze(-1)).sum(dim=-2) / is_text.sum(dim=-1, keepdim=True)
        return F.normalize(self.text.ln_final(mean) @ self.text.text_projection, dim=-1)
