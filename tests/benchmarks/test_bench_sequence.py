"""The side-by-side harness: matrices of the right shape, honest tables, and pre-training that learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.pretrain import Recipe, pretrain
from benchmarks.sequence import DomainSequence, Result, prepare, run_method, table, write_results
from benchmarks.world import DOMAINS
from models.backbone import Backbone, tiny_backbone

SEQUENCE = DomainSequence(domains=tuple(DOMAINS)[:2], train=2, val=1, test=3, categories=2, captions=2)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=2)


def test_a_method_fills_the_lower_triangle(backbone: Backbone, tmp_path: Path) -> None:
    tasks = prepare(SEQUENCE, backbone, tmp_path)
    assert [len(task.test) for task in tasks] == [6, 6]
    ids = [clip.vector_id for task in tasks for clip in task.clips]
    assert len(ids) == len(set(ids))
    result = run_method("ffa_tame", backbone, tasks, seed=1, settings={"epochs": 1, "experts": 2, "rank": 2})
    for mode in ("latest", "pinned"):
        for gallery in ("local", "global", "local_all", "global_all"):
            matrix = result.matrices[mode][gallery]
            assert [[cell is None for cell in row] for row in matrix] == [[False, True], [False, False]]
    pinned = result.matrices["pinned"]["local"]
    assert pinned[1][0] == pinned[0][0], "a pinned query of a known task must not move"
    assert result.steps[0] > 0
    write_results([result], SEQUENCE, backbone, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["results"][0]["matrices"] == result.matrices
    assert "| ffa_tame | pinned |" in (tmp_path / "out" / "table.md").read_text()


def test_frames_are_rendered_once(backbone: Backbone, tmp_path: Path) -> None:
    first = prepare(SEQUENCE, backbone, tmp_path)
    stamps = {clip.frames_path: clip.frames_path.stat().st_mtime_ns for t in first for clip in t.clips}
    again = prepare(SEQUENCE, backbone, tmp_path)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_the_table_gives_mean_and_deviation_over_seeds() -> None:
    def run(seed: int, final: float) -> Result:
        matrix: list[list[float | None]] = [[40.0, None], [final, 50.0]]
        return Result("finetune", seed, {"latest": {"local": matrix, "global": matrix}})

    row = table([run(1, 30.0), run(2, 34.0)]).splitlines()[2]
    assert "| 41.00 ± 1.41 |" in row  # mean of (30+50)/2 and (34+50)/2
    assert "| 8.00 ± 2.83 |" in row  # mean of 40-30 and 40-34


def test_pre_training_learns_and_repeats(tmp_path: Path) -> None:
    losses: list[float] = []
    recipe = Recipe(steps=40, batch_size=8)
    pretrain(tmp_path / "a.safetensors", recipe, workers=0, report=lambda step, loss: losses.append(loss))
    assert losses[-1] < losses[0]
    pretrain(tmp_path / "b.safetensors", recipe, workers=0)
    first, second = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
