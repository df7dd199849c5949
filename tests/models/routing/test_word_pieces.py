"""Word pieces: those of MiniLM for every text, whatever the backbone."""

from __future__ import annotations

import numpy as np

from models.routing.word_pieces import (
    VOCABULARY,
    count_pieces,
    distinct_pieces,
    piece_presence,
    split_pieces,
)

TEXTS = ["A Heron by the heron's lake", "", "quokkas"]


def test_pieces_are_those_of_the_tokenizer_without_special_tokens() -> None:
    heron, *_ = split_pieces(["heron"])[0].tolist()
    in_order, empty, parts = (pieces.tolist() for pieces in split_pieces(TEXTS))
    assert in_order.count(heron) == 2
    assert empty == []
    assert len(parts) > 1
    assert all(0 <= piece < VOCABULARY for piece in in_order + parts)
    assert [pieces.tolist() for pieces in distinct_pieces(TEXTS)] == [
        sorted(set(pieces)) for pieces in (in_order, empty, parts)
    ]
    assert [set(np.flatnonzero(row).tolist()) for row in piece_presence(TEXTS)] == [
        set(in_order),
        set(),
        set(parts),
    ]
    assert count_pieces(TEXTS).tolist() == piece_presence(TEXTS).sum(axis=0).tolist()
