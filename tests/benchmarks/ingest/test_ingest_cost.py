"""Rows of the ingest table, measured with few clips."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.ingest_cost import Row, measure_decoding, measure_embedding


@pytest.fixture
def tiny(tmp_path: Path) -> list[Path]:
    return [tmp_path / path for path in write_tiny_clips(tmp_path, 2)]


def test_ratio_is_the_median_of_the_rounds() -> None:
    row = Row("measurement", 0.8, [(10, 5), (10, 9), (20, 20)])
    assert row.ratio == 0.9
    assert row.cells == ["measurement", "10.00", "9.00", "0.90", "0.50 to 1.00", "≥ 0.8", "yes"]


def test_decoding_measures_each_round(tiny: list[Path], tmp_path: Path) -> None:
    row = measure_decoding("tiny", tiny, tmp_path / "out", frames=2, size=32, rounds=2)
    assert len(row.rates) == 2
    assert row.ratio > 0
    assert {path.suffix for path in (tmp_path / "out").rglob("*.*")} == {".jpg", ".npy"}


def test_embedding_measures_each_round_with_one_thread(tiny: list[Path], tmp_path: Path) -> None:
    assert torch.get_num_threads() == 1
    row = measure_embedding("tiny", tiny, tmp_path / "out", rounds=1)
    assert len(row.rates) == 1
    assert row.ratio > 0
