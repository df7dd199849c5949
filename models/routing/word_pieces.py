"""Word pieces: the words of texts for routing, lexicons and spelling, whatever tokens the text towers read.

For every backbone, the pieces are those of the sentence encoder all-MiniLM-L6-v2 (WordPiece), so that the routing
profiles of all encoders have one vocabulary. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Pieces = npt.NDArray[np.int64]

VOCABULARY = 30_522  # V, number of piece IDs


def split_pieces(texts: Sequence[str]) -> list[Pieces]:
    """List the piece IDs of each text in the order of the text, without special tokens."""
    from models.backbones.small.small_files import load_tokenizer

    return [tokens[1:-1] for tokens in load_tokenizer().tokens(texts)]


def distinct_pieces(texts: Sequence[str]) -> list[Pieces]:
    """List the distinct piece IDs of each text, ascending."""
    # For few pieces, this is faster than np.unique.
    return [np.array(sorted(set(pieces.tolist())), np.int64) for pieces in split_pieces(texts)]


def piece_presence(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Mark the pieces that each text contains, as a matrix ``[n, V]`` of zeros and ones."""
    presence = np.zeros((len(texts), VOCABULARY), np.float32)
    for row, pieces in zip(presence, split_pieces(texts), strict=True):
        row[pieces] = 1
    return presence


def count_pieces(texts: Iterable[str]) -> npt.NDArray[np.float32]:
    """Count the texts that contain each piece, ``[V]``."""
    counts = np.zeros(VOCABULARY, np.float32)
    for text in texts:
        counts[distinct_pieces([text])[0]] += 1
    return counts
