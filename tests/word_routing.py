"""Base of fake query encoders that route by words alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from index.arrays import Vectors
from models.encoders.query_encoder import QueryEncoder, TokenizedText


class WordRouting:
    """Routing without evidence in addition to that of the words."""

    shares_text_encoding = False
    shared_modes: tuple[str, ...] = ()

    cosines = QueryEncoder.cosines

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokenize each text to itself, with its word pieces."""
        return [TokenizedText(text, np.flatnonzero(self.piece_presence([text]))) for text in texts]

    def encode_pairs(self, texts: Sequence[TokenizedText], tasks: Sequence[str], mode: str) -> Vectors:
        """Encode texts for one task."""
        return self.encode([text.tokens for text in texts], tasks[:1], mode)[:, 0]

    def routing_evidence(self, texts: Sequence[TokenizedText], tasks: Sequence[str]) -> None:
        """Return no evidence."""
