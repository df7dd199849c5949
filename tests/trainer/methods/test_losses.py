"""Losses of ctvr-ffa-tame against sums that are written out term by term."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from trainer.methods.base import cross_task_loss, in_task_loss

SCALE = 7.0


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return tuple(F.normalize(torch.randn(n, 6), dim=-1) for n in (4, 4, 3))


def _similarity(q: torch.Tensor, v: torch.Tensor) -> float:
    return math.exp(SCALE * float(q @ v))


def test_in_task_loss_equals_equations_7_and_9(vectors: tuple[torch.Tensor, ...]) -> None:
    texts, videos, _ = vectors
    video_to_text = text_to_video = 0.0
    for i in range(4):
        own = _similarity(texts[i], videos[i])
        video_to_text -= math.log(own / sum(_similarity(texts[j], videos[i]) for j in range(4))) / 4
        text_to_video -= math.log(own / sum(_similarity(texts[i], videos[j]) for j in range(4))) / 4
    expected = (video_to_text + text_to_video) / 2
    assert float(in_task_loss(texts, videos, SCALE)) == pytest.approx(expected, rel=1e-5)


def test_cross_task_loss_equals_equation_8(vectors: tuple[torch.Tensor, ...]) -> None:
    texts, videos, references = vectors
    expected = 0.0
    for i in range(4):
        batch = sum(_similarity(texts[i], videos[t]) for t in range(4))
        stored = sum(_similarity(texts[i], references[h]) for h in range(3))
        expected -= math.log(_similarity(texts[i], videos[i]) / (batch + stored)) / 4
    assert float(cross_task_loss(texts, videos, references, SCALE)) == pytest.approx(expected, rel=1e-5)


def test_stored_vectors_receive_no_gradient(vectors: tuple[torch.Tensor, ...]) -> None:
    texts, videos, references = vectors
    texts.requires_grad_(True)
    references.requires_grad_(True)
    cross_task_loss(texts, videos, references, SCALE).backward()
    assert references.grad is None
    assert texts.grad is not None


def test_loss_of_a_single_pair_is_finite(vectors: tuple[torch.Tensor, ...]) -> None:
    texts, videos, _ = vectors
    assert float(in_task_loss(texts[:1], videos[:1], SCALE)) == 0.0
