"""TAME against loops over equations 4 to 6."""

from __future__ import annotations

import pytest
import torch

from models.adapters.tame import NO_EXPERT, ROUTED, Tame, TameWeights
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.tower_forward import encode_texts

WIDTH, LAYERS, EXPERTS, RANK = 8, 2, 4, 3


@pytest.fixture
def tame() -> Tame:
    """Random adapters with four tasks: one with a fixed expert, two that are routed, one without experts."""
    torch.manual_seed(1)
    tame = Tame(WIDTH, LAYERS, experts=EXPERTS, rank=RANK, top_k=2, scale=1.5, dropout=0.1)
    tame.requires_grad_(False)
    for parameter in (tame.a, tame.b, tame.router, tame.noise):
        torch.nn.init.normal_(parameter)
    for expert in (0, ROUTED, ROUTED, NO_EXPERT):
        tame.add_task(expert=expert)
    return tame.requires_grad_(False).eval()


def _reference_delta(
    tame: Tame, task: int, layer: int, projection: int, tokens: torch.Tensor, end: int
) -> torch.Tensor:
    """Compute λ Σ w_i B_i A x of one text ``[L, d]``, token by token."""
    router = tame.router[layer, projection]
    logits = torch.stack([row @ (tokens[end] + tame.prototypes[task]) for row in router])
    best = sorted(range(EXPERTS), key=lambda e: -float(logits[e]))[:2]
    gates = dict(zip(best, torch.softmax(logits[best], dim=0), strict=True))
    if tame.task_experts[task] >= 0:
        gates = {tame.task_experts[task]: torch.tensor(1.0)}
    elif tame.task_experts[task] == NO_EXPERT:
        gates = {}
    result = torch.zeros_like(tokens)
    for position, token in enumerate(tokens):
        for expert, gate in gates.items():
            low = tame.a[layer, projection] @ token
            result[position] += gate * (tame.b[layer, projection, expert] @ low)
    return tame.scale * result


def test_deltas_follow_equations_4_to_6(tame: Tame) -> None:
    hidden = torch.randn(4, 3, 6, WIDTH)  # four candidates, three texts, six tokens
    end = torch.tensor([5, 2, 4])
    condition = tame.condition([0, 1, 2, 3])
    for layer in range(LAYERS):
        inputs = condition.input_deltas(layer, hidden, end)
        output = condition.output_delta(layer, hidden, end)
        for task in range(4):
            for text in range(3):
                for projection, deltas in enumerate((*inputs, output)):
                    tokens, last = hidden[task, text], int(end[text])
                    expected = _reference_delta(tame, task, layer, projection, tokens, last)
                    torch.testing.assert_close(deltas[task, text], expected, atol=1e-5, rtol=1e-4)


def test_candidates_in_one_forward_equal_single_forwards() -> None:
    torch.manual_seed(0)
    backbone = tiny_backbone()
    models = []
    for _ in range(3):
        tame = Tame(128, 4, experts=3, rank=4)
        torch.nn.init.normal_(tame.b, std=0.1)
        for _ in range(3):
            tame.add_task()
        models.append(tame.eval())
    ids = backbone.tokenize(["a red circle moves left", "two squares"])
    alone = [encode_texts(backbone, ids, t.condition([i]))[0] for i, t in enumerate(models)]
    stacked = TameWeights.stack([t.weights() for t in models])
    conditions = [t.condition([i]) for i, t in enumerate(models)]
    stacked_vectors = encode_texts(
        backbone,
        ids,
        type(conditions[0])(
            weights=stacked,
            prototypes=torch.cat([c.prototypes for c in conditions]),
            experts=torch.cat([c.experts for c in conditions]),
            top_k=2,
            scale=4.0,
        ),
    )
    torch.testing.assert_close(stacked_vectors, torch.stack(alone), atol=1e-5, rtol=1e-4)


def test_exploration_noise_changes_gates_only_in_training(tame: Tame) -> None:
    end = torch.randn(1, 1, WIDTH)
    assert torch.equal(*(tame.condition([1]).gates(0, slice(0, 4), end) for _ in range(2)))
    tame.train()
    assert not torch.equal(*(tame.condition([1]).gates(0, slice(0, 4), end) for _ in range(2)))


def test_tensors_round_trip(tame: Tame) -> None:
    copy = Tame(WIDTH, LAYERS, experts=EXPERTS, rank=RANK)
    copy.load_tensors(tame.tensors())
    assert copy.task_experts == tame.task_experts
    for name, value in tame.tensors().items():
        assert torch.equal(copy.tensors()[name], value)
    with pytest.raises(RuntimeError, match=r"a has shape \(2, 4, 3, 8\)"):
        Tame(WIDTH, LAYERS, experts=EXPERTS, rank=RANK + 1).load_tensors(tame.tensors())
