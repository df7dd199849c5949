"""BERT as the text tower of a backbone: tokenizer, tower, and the text half of the backbone interface.

The vector of a text is the mean over its tokens, including [CLS] and [SEP] but not padding, projected into the joint
space by one linear layer (bmu-moco, equations 4 to 6); because the layer is linear, it can be applied after the mean.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoTokenizer

from models.backbones.backbone import Backbone, FrameSpec
from models.errors import BackboneUnsupported

TEXT_LENGTH = 77  # maximum tokens per text, as in CLIP
_LOGIT_SCALE = math.log(1 / 0.07)  # bmu-moco, section 4.1; ctp, section 5.1
_PADDING = 0  # id of [PAD] in every vocabulary of BERT


class BertTextTower(nn.Module):
    """A BERT and its projection into the joint space.

    Args:
        bert: ``BertModel`` without pooling layer.
        projection: ``[width, dim]``.
        ln_final: Layer between the mean over tokens and the projection. BERT normalizes its states itself.
    """

    def __init__(self, bert: Any, projection: Tensor, ln_final: nn.Module | None = None) -> None:
        super().__init__()
        self.bert: Any = bert
        self.ln_final = ln_final or nn.Identity()  # methods read the input of the projection here
        self.text_projection = nn.Parameter(projection)

    @property
    def positional_embedding(self) -> Tensor:
        return cast(Tensor, self.bert.embeddings.position_embeddings.weight[:TEXT_LENGTH])


class Towers(nn.Module):
    """Both towers, with the structure and names of a CLIP model.

    Args:
        visual: Image tower with ``ln_post`` and ``proj [width, dim]``.
    """

    def __init__(self, visual: nn.Module, text: BertTextTower) -> None:
        super().__init__()
        self.visual = visual
        self.text = text
        self.logit_scale = nn.Parameter(torch.tensor(_LOGIT_SCALE))


class BertBackbone(Backbone):
    """A backbone with closed blocks whose text tower is a BERT; subclasses add the image tower.

    Args:
        name, clip, tokenizer, spec, mean, std: See :class:`~models.backbones.backbone.Backbone`.
    """

    has_open_blocks = False

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
        self._text_layers: Sequence[nn.Module] | None = None

    @property
    def dim(self) -> int:
        return int(self.text.text_projection.shape[1])

    @property
    def token_embedding(self) -> nn.Embedding:
        return cast(nn.Embedding, self.text.bert.get_input_embeddings())

    @property
    def vocabulary(self) -> int:
        return int(self.text.bert.config.vocab_size)

    @property
    def text_layers(self) -> Sequence[nn.Module]:
        """Layers of the text tower, functions of states ``[n, L, width]`` and a mask ``[n, 1, 1, L]`` or None."""
        return cast(Sequence[nn.Module], self._text_layers or self.text.bert.encoder.layer)

    def with_text_layers(self, layers: Sequence[nn.Module]) -> BertBackbone:
        """A backbone with other text layers that shares everything else with this one."""
        other = copy.copy(self)
        other._text_layers = list(layers)
        return other

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        ids: Tensor = self._tokenizer(texts)
        return ids

    def end_of_text(self, ids: Tensor) -> Tensor:
        """Position of [SEP], the last token before the padding, ``[n]``."""
        return _positions(ids).masked_fill(ids == _PADDING, 0).amax(dim=-1)

    def text_states(self, ids: Tensor) -> Tensor:
        # The layers run one by one because BertModel spends a fifth of the time of a short text on its mask.
        is_text = _positions(ids) <= self.end_of_text(ids).unsqueeze(1)
        mask = None if bool(is_text.all()) else is_text[:, None, None]
        states: Tensor = self.text.bert.embeddings(input_ids=ids)
        for layer in self.text_layers:
            states = layer(states, mask)
        return states

    def pool_text(self, hidden: Tensor, end: Tensor) -> Tensor:
        """Unit text vectors ``[..., n, dim]``: projected mean of states ``[..., n, L, width]`` up to ``end [n]``."""
        is_text = torch.arange(hidden.shape[-2], device=hidden.device) <= end.unsqueeze(1)
        mean = (hidden * is_text.unsqueeze(-1)).sum(dim=-2) / is_text.sum(dim=-1, keepdim=True)
        return F.normalize(self.text.ln_final(mean) @ self.text.text_projection, dim=-1)


class BertTokenizer:
    """Function from texts to token ids ``[n, L]``, truncated to the maximum length and padded to the longest text.

    It is immutable after construction: threads can share it, and so do copies of a backbone.

    Args:
        source: Model name or folder.
        length: Maximum number of tokens per text.

    Attributes:
        size: Vocabulary size.
        digest: Digest of the vocabulary.

    Raises:
        BackboneUnsupported: The padding token is not that of BERT.
    """

    def __init__(self, source: str, length: int) -> None:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        if tokenizer.pad_token_id != _PADDING:
            raise BackboneUnsupported(
                f"the tokenizer of {source!r} pads with token {tokenizer.pad_token_id}, not {_PADDING} as BERT does"
            )
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.enable_truncation(length)
        self._tokenizer.enable_padding(pad_id=_PADDING, pad_token=tokenizer.pad_token)
        vocabulary = sorted(tokenizer.get_vocab().items())
        self.size = len(vocabulary)
        self.digest = hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))])

    def __deepcopy__(self, memo: dict[int, Any]) -> BertTokenizer:
        return self


def _positions(ids: Tensor) -> Tensor:
    """Position of each token, ``[n, L]``."""
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
