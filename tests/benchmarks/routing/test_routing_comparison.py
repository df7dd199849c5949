"""Routing accuracies on a small file in the format of the published splits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import ProtocolError
from benchmarks.routing.routing_comparison import (
    TextEncoder,
    caption_folds,
    compare_routing,
    read_captions,
    routing_table,
)
from models.backbones.backbone import Backbone


def write_split(path: Path, *, captioned: bool) -> Path:
    def clips(noun: str, prefix: str) -> list[dict[str, Any]]:
        return [{"video_id": f"{prefix}{noun}{n}", "caption": f"a {noun} moves"} for n in range(4)]

    def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows if captioned else [{"video_id": row["video_id"]} for row in rows]

    tasks = [
        {"task": number, "train": {noun: bare(clips(noun, "train"))}, "val": {noun: clips(noun, "test")}}
        for number, noun in enumerate(("horse", "truck", "piano"), 1)
    ]
    path.write_text(json.dumps(tasks))
    return path


@pytest.mark.parametrize("captioned", [True, False])
def test_words_of_one_task_route_all_queries(
    tmp_path: Path, shipped_backbone: Backbone, captioned: bool
) -> None:
    path = write_split(tmp_path / "three.json", captioned=captioned)
    result = compare_routing("three", read_captions(path), TextEncoder(shipped_backbone))
    assert (result.tasks, result.queries, result.has_training_captions) == (3, 12, captioned)
    assert result.accuracies["chance"] == pytest.approx((100 / 3, 200 / 3, 100))
    for name in (
        "token profiles",
        "multinomial naive Bayes",
        "logistic regression on TF-IDF, all tasks at once",
    ):
        assert result.accuracies[name] == (100, 100, 100), name
    table = routing_table([result])
    assert ("three (2 folds)" in table) != captioned
    assert "| token profiles | 100.0 / 100.0 / 100.0 |" in table


def test_folds_separate_videos(tmp_path: Path) -> None:
    captions = read_captions(write_split(tmp_path / "three.json", captioned=False))
    folds = list(caption_folds(captions))
    assert len(folds) == 2
    assert sorted(c.video for fold in folds for c in fold.test) == sorted(c.video for c in captions.test)
    for fold in folds:
        assert not {c.video for c in fold.train} & {c.video for c in fold.test}


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for content in ("[", '[{"train": {}}]', "[]"):
        path.write_text(content)
        with pytest.raises(ProtocolError, match=r"other.json"):
            read_captions(path)
    with pytest.raises(ProtocolError, match=r"missing.json"):
        read_captions(tmp_path / "missing.json")
