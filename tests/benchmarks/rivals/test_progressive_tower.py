"""Progressive neural networks: equation 2 against loops over tokens, and frozen earlier columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rivals.encoders.progressive_family import (
    NO_COLUMN,
    ProgressiveTower,
    encode_frames_with_column,
    encode_texts_with_columns,
)
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import ReleaseError
from tests.trainer.methods.method_driver import TEXTS, random_frames


def random_tower(backbone: Backbone, columns: int, *, is_visual: bool) -> ProgressiveTower:
    """Return columns whose weights all differ from those of the backbone."""
    torch.manual_seed(columns)
    tower = ProgressiveTower(backbone, is_visual=is_visual)
    for _ in range(columns):
        tower.add_column()
        with torch.no_grad():
            for parameter in tower.newest_parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return tower


def slow_states(tower: ProgressiveTower, inputs: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    """Return the last states ``[L, width]`` of all columns for one text or frame, by equation 2 token by token."""
    states = inputs
    for layer in range(tower.depth):
        outputs = []
        for number, column in enumerate(tower.columns):
            blocks = column.visual_blocks if tower.is_visual else column.text_blocks
            output = blocks[layer](states[number].unsqueeze(0), attn_mask=mask)[0].detach().double().numpy()
            if number:
                lateral = tower.laterals[number][layer]
                alpha, v, u = (
                    weight.detach().double().numpy()
                    for weight in (lateral.alpha, lateral.down.weight, lateral.up.weight)
                )
                for token in range(len(output)):
                    read = [alpha[j] * states[j][token].detach().double().numpy() for j in range(number)]
                    output[token] += u @ np.maximum(v @ np.concatenate(read), 0)
            outputs.append(torch.from_numpy(output).float())
        states = outputs
    return states


def test_texts_follow_equation_2(backbone: Backbone) -> None:
    tower = random_tower(backbone, 3, is_visual=False)
    ids = backbone.tokenize(TEXTS)
    found = encode_texts_with_columns(tower, ids, [2, 0, 1])
    mask = backbone.text.attn_mask[: ids.shape[1], : ids.shape[1]]
    for row, end in enumerate(backbone.end_of_text(ids)):
        states = slow_states(tower, [c.embed_tokens(ids[row : row + 1])[0] for c in tower.columns], mask)
        for place, number in enumerate([2, 0, 1]):
            clip = tower.columns[number].clip
            vector = clip.ln_final(states[number][end]) @ clip.text_projection
            torch.testing.assert_close(found[place, row], F.normalize(vector, dim=0), atol=1e-5, rtol=1e-4)


def test_frames_follow_equation_2(backbone: Backbone) -> None:
    tower = random_tower(backbone, 3, is_visual=True)
    frames = random_frames(3, videos=2)
    found = encode_frames_with_column(tower, frames, 2)
    visual = tower.columns[2].clip.visual
    for row in range(2):
        inputs = [column.embed_frames(frames[row : row + 1])[0] for column in tower.columns]
        last = [slow_states(tower, [i[m] for i in inputs], None)[2] for m in range(frames.shape[1])]
        vectors = [visual.ln_post(states[0]) @ visual.proj for states in last]
        expected = F.normalize(torch.stack(vectors).mean(dim=0), dim=0)
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-4)


def test_new_columns_start_as_the_backbone(backbone: Backbone) -> None:
    visual, text = (random_tower(backbone, 2, is_visual=is_visual) for is_visual in (True, False))
    ids, frames = backbone.tokenize(TEXTS), random_frames(1)
    expected = encode_texts(backbone, ids)[0], encode_frames(backbone, frames)[0]
    visual.add_column()
    text.add_column()
    for column in (NO_COLUMN, 2):
        torch.testing.assert_close(
            encode_texts_with_columns(text, ids, [column])[0], expected[0], atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(
            encode_frames_with_column(visual, frames, column), expected[1], atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("is_visual", [True, False])
def test_only_the_newest_column_learns(backbone: Backbone, is_visual: bool) -> None:
    tower = random_tower(backbone, 3, is_visual=is_visual)
    before = {name: tensor.clone() for name, tensor in tower.tensors().items()}
    optimizer = torch.optim.SGD([p for p in tower.newest_parameters()], lr=0.1)
    if is_visual:
        vectors = encode_frames_with_column(tower, random_frames(1), 2)
    else:
        vectors = encode_texts_with_columns(tower, backbone.tokenize(TEXTS), [2])[0]
    vectors[:, 0].sum().backward()
    optimizer.step()
    after = tower.tensors()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert {name.partition(".")[0] for name in changed} == {"2"}
    last = tower.depth - 1
    assert {f"2.lateral.{last}.{weight}" for weight in ("alpha", "down.weight", "up.weight")} <= changed
    # The first column has no lateral connections, the third one reads two columns.
    assert not any(name.startswith("0.lateral.") for name in after)
    width = tower.width
    assert after["2.lateral.0.down.weight"].shape == (width, 2 * width)
    # Every column has its own tower and shares the other with the backbone.
    own, shared = ("visual", "transformer") if is_visual else ("transformer", "visual")
    for name, parameter in tower.columns[1].clip.named_parameters():
        if name.startswith(shared):
            assert parameter is backbone.clip.get_parameter(name)
        if name.startswith(own):
            assert parameter is not backbone.clip.get_parameter(name)


def test_loaded_columns_encode_alike(backbone: Backbone) -> None:
    tower = random_tower(backbone, 3, is_visual=False)
    loaded = ProgressiveTower(backbone, is_visual=False)
    loaded.load_tensors(tower.tensors())
    ids = backbone.tokenize(TEXTS)
    assert torch.equal(
        encode_texts_with_columns(loaded, ids, [0, 2, NO_COLUMN]),
        encode_texts_with_columns(tower, ids, [0, 2, NO_COLUMN]),
    )
    with pytest.raises(ReleaseError, match="the 3 columns do not fit backbone 'tiny'"):
        ProgressiveTower(backbone, is_visual=True).load_tensors(tower.tensors())
