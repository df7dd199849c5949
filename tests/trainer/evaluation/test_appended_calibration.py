"""Calibration captions of appended videos: the evidence of a caption for its task does not contain the caption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from models.encoders.query_encoder import TokenizedText
from models.routing.word_pieces import VOCABULARY, distinct_pieces, split_pieces
from trainer.release_calibration import MAX_TASK_CAPTIONS, calibrate_appended
from trainer.video_embedding import MemoryShard

DIM = 50


def pieces(numbers: Iterable[int]) -> np.ndarray:
    return np.array([split_pieces([str(number)])[0][0] for number in numbers])


class DigitEncoder:
    """A text is a row of numbers, a word piece each; its vector is the one-hot vector of the first."""

    modes = ("pinned",)

    profile_factor = 1.0

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        return [TokenizedText(np.empty(0, np.int64), text) for text in distinct_pieces(texts)]

    def routing_evidence(self, texts: Sequence[TokenizedText], tasks: Sequence[str]) -> None:
        return None

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> np.ndarray:
        return np.eye(DIM, dtype=np.float32)[[int(text.split()[0]) for text in texts]][:, None]


def calibrate(learned: Sequence[str], appended: Sequence[tuple[int, str]], videos: int = 8) -> Any:
    ids = np.arange(videos, dtype=np.int64)
    shard = MemoryShard(ids, np.eye(DIM, dtype=np.float32)[:videos])
    encoder: Any = DigitEncoder()
    return calibrate_appended(encoder, "day", shard, ids, learned, appended)


def test_profile_contains_all_captions() -> None:
    profile, _ = calibrate(["1 2", "1 3"], [(4, "1 4 4")])
    counts = np.zeros(VOCABULARY)
    counts[pieces([1, 2, 3, 4])] = 3, 1, 1, 1
    expected = np.log1p(VOCABULARY * counts / 6)
    assert profile == pytest.approx(expected, rel=1e-3)  # in the precision of a release


def test_evidence_of_a_caption_is_that_without_it() -> None:
    """As if the task had been given the other captions only."""
    appended = [(1, "1 2 3"), (2, "2 5"), (3, "6 7")]
    for number, (video, text) in enumerate(appended):
        others = appended[:number] + appended[number + 1 :]
        profile, _ = calibrate(["1 9"], others)
        words = pieces(map(int, text.split()))
        caption = next(each for each in calibrate(["1 9"], appended)[1] if each.video == video)
        assert caption.words == pytest.approx(profile[words].sum(), rel=1e-5)
        assert caption.coverage == pytest.approx((profile[words] > 0).mean())


def test_results_are_those_of_the_shard() -> None:
    _, (caption,) = calibrate([], [(5, "3 1")])
    assert (caption.score, caption.ids[0], caption.cosines[0]) == (0.0, 3, 1.0)
    assert list(caption.cosines) == sorted(caption.cosines, reverse=True)


def test_sample_is_bounded_and_leaves_out_videos_that_are_not_searched() -> None:
    many = [(video % 8, f"{video % 40}") for video in range(200)]
    (_, first), (_, second) = calibrate([], many), calibrate([], many)
    assert first == second
    assert len(first) == MAX_TASK_CAPTIONS
    assert calibrate([], [(30, "1")])[1] == []
