"""Low-rank updates to a text tower: values, tensors, and several candidates in one forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.low_rank_text_update import TextUpdate, TextUpdateSet, compact_text_update
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts

LAYERS, WIDTH, VOCABULARY, RANK = 2, 8, 20, 3


def _random_update(seed: int, *, scale: float = 0.5) -> TextUpdate:
    """Draw an update that changes the embeddings of five tokens."""
    torch.manual_seed(seed)
    update = TextUpdate(WIDTH, LAYERS, VOCABULARY, rank=RANK, scale=scale).requires_grad_(False)
    update.b.normal_()
    update.words[torch.randperm(VOCABULARY)[:5]] = torch.randn(5, WIDTH)
    return update


def test_deltas_are_scaled_low_rank_products() -> None:
    parts = [_random_update(seed) for seed in (1, 2)]
    updates = TextUpdateSet.stack([part.as_update_set() for part in parts])
    hidden = torch.randn(2, 4, 6, WIDTH)  # [C, n, L, d]
    end = torch.zeros(4, dtype=torch.int64)
    for layer in range(LAYERS):
        inputs, output = updates.input_deltas(layer, hidden, end), updates.output_delta(layer, hidden, end)
        for c, part in enumerate(parts):
            for p in range(4):
                deltas = (output if p == 3 else inputs[p])[c]
                for text in range(4):
                    for index in range(6):
                        x = hidden[c, text, index]
                        expected = 0.5 * part.b[layer, p] @ (part.a[layer, p] @ x)
                        torch.testing.assert_close(deltas[text, index], expected)


def test_embedding_changes_apply_to_their_own_candidate() -> None:
    parts = [_random_update(seed) for seed in (1, 2, 3)]
    ids = torch.randint(0, VOCABULARY, (4, 7))
    small = TextUpdateSet.stack([compact_text_update(part.tensors(), VOCABULARY, 0.5) for part in parts])
    assert len(small.words) == 1 + 3 * 5  # unchanged tokens share one row
    for updates in (small, TextUpdateSet.stack([part.as_update_set() for part in parts])):
        expected = torch.stack([F.embedding(ids, part.words) for part in parts])
        assert torch.equal(updates.embedding_delta(ids), expected)
        assert torch.equal(updates.choose(torch.tensor([2, 0])).embedding_delta(ids), expected[[2, 0]])


def test_candidates_in_one_forward_equal_single_ones(backbone: Backbone) -> None:
    ids = backbone.tokenize(["a red circle moves left", "two small stars", "it vanishes"])
    updates = []
    for seed in range(3):
        torch.manual_seed(seed)
        update = TextUpdate.for_backbone(backbone, rank=4, scale=1.0).requires_grad_(False)
        update.b.normal_(std=0.05)
        tokens = torch.unique(ids)[seed:]
        update.words[tokens] = 0.05 * torch.randn(len(tokens), 128)
        updates.append(update)
    alone = torch.cat([encode_texts(backbone, ids, update.as_update_set()) for update in updates])
    stacked = TextUpdateSet.stack(
        [compact_text_update(u.tensors(), backbone.vocabulary, 1.0) for u in updates]
    )
    torch.testing.assert_close(encode_texts(backbone, ids, stacked), alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(alone[0], alone[1], atol=1e-2)


@pytest.mark.parametrize("which", [[0, 1, 2], [1, 2], [2], [], [2, 0], [1, 1], [0, 2]])
def test_selected_candidates_equal_their_updates(which: list[int]) -> None:
    updates = TextUpdateSet.stack([_random_update(seed).as_update_set() for seed in (1, 2, 3)])
    chosen = updates.choose(torch.tensor(which))
    hidden, end = torch.randn(len(which), 4, 6, WIDTH), torch.zeros(4, dtype=torch.int64)
    for layer in range(LAYERS):
        for row, index in enumerate(which):
            alone, x = updates.part(index, index + 1), hidden[row : row + 1]
            expected = [*alone.input_deltas(layer, x, end), alone.output_delta(layer, x, end)]
            deltas = [*chosen.input_deltas(layer, hidden, end), chosen.output_delta(layer, hidden, end)]
            for delta, expected_delta in zip(deltas, expected, strict=True):
                torch.testing.assert_close(delta[row : row + 1], expected_delta)


def test_text_update_tensors_round_trip() -> None:
    update, other = _random_update(1), _random_update(2)
    other.load_tensors(update.tensors())
    assert all(torch.equal(a, b) for a, b in zip(update.parameters(), other.parameters(), strict=True))
    remaining = update.tensors()["tokens"][:2]
    update.reset_other_words(remaining)
    assert torch.equal(update.tensors()["tokens"], remaining)
    assert torch.equal(update.words[remaining], other.words[remaining])
    with pytest.raises(RuntimeError, match=r"a has shape \(2, 4, 3, 8\), not"):
        TextUpdate(WIDTH, LAYERS, VOCABULARY, rank=RANK + 1, scale=1.0).load_tensors(update.tensors())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", torch.tensor([VOCABULARY, 1, 2, 3, 4]), "a token ID is not in .* vocabulary of 20"),
        ("words", torch.zeros(4, WIDTH), "do not fit together"),
        ("b", torch.zeros(LAYERS, 4, WIDTH, RANK + 1), "do not fit together"),
    ],
)
def test_invalid_update_tensors_are_refused(name: str, value: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compact_text_update({**_random_update(1).tensors(), name: value}, VOCABULARY, 1.0)
