"""Corrupted media files through the probing worker."""

from __future__ import annotations

import pytest

from benchmarks.hostile import hostile_media


@pytest.mark.slow  # decodes some hundred files
def test_corrupted_files_are_accepted_or_rejected_and_harm_nothing() -> None:
    report = hostile_media.run(200, seed=11)
    assert report["violations"] == []
    outcomes = report["outcomes"]
    assert isinstance(outcomes, dict)
    assert outcomes["valid files"] == {"accepted": len(hostile_media.valid_files())}
    assert sum(sum(counts.values()) for counts in outcomes.values()) == 200 + len(hostile_media.valid_files())
    (row,) = report["rows"]  # type: ignore[misc]
    assert row[0] == sum(row[1:]) == 200
    assert sum(report["sounds"].values()) == row[1]  # type: ignore[attr-defined]
    assert report["sounds"]["read"] > 50  # type: ignore[index]
    assert outcomes["random bytes after a signature"].keys() <= {"rejected", "copy of another input"}
