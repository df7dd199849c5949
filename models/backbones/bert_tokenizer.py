"""BERT's tokenizer: from texts to padded token IDs. It imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from models.backbones.backbone_description import pad_texts
from models.errors import BackboneUnsupported

TEXT_LENGTH = 77  # maximum tokens per text, as in CLIP
PADDING = 0  # ID of [PAD] in every BERT vocabulary
_PADDING_PIECE = "[PAD]"
_PROBE_TOKENS = 16


def probe_ids(vocabulary: int) -> npt.NDArray[np.int64]:
    """Build the token IDs ``[2, L]`` of two texts to check engines with; the second text has padding."""
    ids = np.arange(1, 2 * _PROBE_TOKENS + 1).reshape(2, -1) % vocabulary
    ids[1, _PROBE_TOKENS // 2 :] = PADDING
    return ids


class BertTokenizer:
    """Function from texts to token IDs ``[n, L]``, truncated to the maximum length and padded to the longest text.

    It is immutable after construction: threads, and copies of a backbone, can share it. It modifies the model's
    tokenizer; raise BackboneUnsupported if its padding token is not BERT's.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, length: int) -> None:
        padding = tokenizer.token_to_id(_PADDING_PIECE)
        if padding != PADDING:
            raise BackboneUnsupported(
                f"the tokenizer of {source!r} pads with token {padding}, not {PADDING} as BERT does"
            )
        self._tokenizer = tokenizer
        self._tokenizer.enable_truncation(length)
        self._tokenizer.no_padding()
        vocabulary = sorted(tokenizer.get_vocab().items())
        self.size = len(vocabulary)
        self.digest = hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        return pad_texts(self.tokens(texts), PADDING)

    def tokens(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Convert each text to token IDs ``[L]``, without padding."""
        # The library's batches start a thread per core, and are slower even for hundreds of captions.
        return [np.array(self._tokenizer.encode(text).ids, np.int64) for text in texts]

    def __deepcopy__(self, memo: dict[int, Any]) -> BertTokenizer:
        return self
