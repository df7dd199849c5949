"""X-Pool's learned pooling, compared with the equations of the paper in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.merging.xpool_pooling import XPool, train_xpool

DIM = 6


def _units(*shape: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=-1)


def _linear(layer: torch.nn.Linear, vector: list[float]) -> list[float]:
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + bias
        for row, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def _norm(layer: torch.nn.LayerNorm, vector: list[float]) -> list[float]:
    mean = sum(vector) / len(vector)
    spread = math.sqrt(sum((x - mean) ** 2 for x in vector) / len(vector) + layer.eps)
    scaled = [(x - mean) / spread for x in vector]
    return [g * x + b for g, x, b in zip(layer.weight.tolist(), scaled, layer.bias.tolist(), strict=True)]


def test_score_equals_the_equations() -> None:
    torch.manual_seed(1)
    model = XPool(DIM).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    texts, frames = _units(3, DIM), _units(2, 4, DIM, seed=1)
    scores = model(texts, frames)
    for number, text in enumerate(texts.tolist()):
        for video, shots in enumerate(frames.tolist()):
            query = _linear(model.query, _norm(model.input_norm, text))
            normalized = [_norm(model.input_norm, shot) for shot in shots]
            weights = [
                math.exp(
                    sum(a * b for a, b in zip(query, _linear(model.key, shot), strict=True)) / math.sqrt(DIM)
                )
                for shot in normalized
            ]
            values = [_linear(model.value, shot) for shot in normalized]
            attended = [
                sum(w * value[i] for w, value in zip(weights, values, strict=True)) / sum(weights)
                for i in range(DIM)
            ]
            pooled = _norm(model.pooled_norm, _linear(model.output, attended))
            sums = [a + b for a, b in zip(_linear(model.linear, pooled), pooled, strict=True)]
            final = _norm(model.final_norm, sums)
            cosine = sum(a * b for a, b in zip(text, final, strict=True)) / (
                math.hypot(*text) * math.hypot(*final)
            )
            assert scores[number, video].item() == pytest.approx(cosine, abs=1e-5)


def test_training_learns_the_rotation_between_texts_and_frames() -> None:
    texts = _units(16, DIM, seed=2)
    rotated = texts @ torch.linalg.qr(_units(DIM, DIM, seed=3)).Q
    frames = torch.stack([rotated, _units(16, DIM, seed=4)], dim=1)
    videos = list(range(16))

    def mean_rank(model: XPool) -> float:
        scores = model(texts, frames)
        return float((scores >= scores.diag()[:, None]).sum(dim=1).float().mean())

    trained = train_xpool(texts, frames, videos, epochs=40, learning_rate=1e-2)
    assert mean_rank(trained) < 4 < mean_rank(XPool(DIM).eval())
    again = train_xpool(texts, frames, videos, epochs=40, learning_rate=1e-2)
    assert torch.equal(again(texts, frames), trained(texts, frames)), "training is repeatable"
