"""Image-text protocols run on small files in the published formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from benchmarks.learning.labeled_pairs import LabeledTask, fused_pair_precisions
from benchmarks.learning.protocol import load_protocol
from benchmarks.learning.task_preparation import prepare_tasks
from benchmarks.rivals import start_method
from cli.main import app
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from tests.image_text_files import INDUSTRIES, p9d_files, secoco_files, sevige_files
from trainer.methods import MethodError
from trainer.task_data import TaskData, load_frames

SMALL: dict[str, Any] = {"backbone": "tiny", "seeds": 1, "settings": {"epochs": 1, "batch_size": 4}}
INDUSTRY_FIELDS = [{"name": name, "key": key} for name, key in zip(("Home", "Food"), INDUSTRIES, strict=True)]
ONE_LAYER = {"fusion_layers": 1, "queue": 4}
FRAMES = 1  # of the fixture backbone


@pytest.fixture
def protocol(tmp_path: Path) -> Callable[..., Path]:
    """Write a small protocol that extends another; returns its path."""

    def write(name: str, **fields: Any) -> Path:
        path = tmp_path / f"small-{name}.yaml"
        path.write_text(
            yaml.safe_dump({"extends": name, **SMALL, **fields}, allow_unicode=True), encoding="utf-8"
        )
        return path

    return write


@pytest.fixture
def industries(protocol: Callable[..., Path], tmp_path: Path) -> list[TaskData]:
    """Two tasks of P9D with their frames."""
    plan = load_protocol(str(protocol("p9d", source={"industries": INDUSTRY_FIELDS})))
    return prepare_tasks(plan, FrameSpec(1, 56), tmp_path / "frames", videos=p9d_files(tmp_path / "p9d", 2))


def bench_run(protocol: Path, videos: Path, folder: Path, *options: str) -> str:
    common = ("--out", folder / "out", "--cache", folder / "frames", "--device", "cpu")
    outcome = CliRunner().invoke(
        app, ["bench", "run", *map(str, (protocol, "--videos", videos, *common, *options))]
    )
    assert outcome.exit_code == 0, outcome.output
    return str(outcome.output)


@pytest.mark.slow
def test_p9d_run_reports_both_directions_and_fused_pairs(
    protocol: Callable[..., Path], tmp_path: Path
) -> None:
    methods = [
        {"method": "ctp", "label": "CTP", "reindex": True, "settings": ONE_LAYER},
        {"method": "zero_shot", "label": "untrained"},
    ]
    plan = protocol("p9d", source={"industries": INDUSTRY_FIELDS}, methods=methods)
    bench_run(plan, p9d_files(tmp_path / "p9d", 2), tmp_path)
    rows = json.loads((tmp_path / "out" / "results" / "CTP-seed0.json").read_text())["rows"]
    assert [set(row["pair_map"]) for row in rows] == [{"1", "5", "10"}] * 2, "after each task"
    text = (tmp_path / "out" / "report.md").read_text()
    table = text[text.index("## Both directions") : text.index("## Every task")]
    header, _, *lines = (line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|"))
    cells = {line[0]: dict(zip(header, line, strict=True)) for line in lines if line[2] == "unknown"}
    assert cells["CTP"]["mAP@5 ↑"] == f"{100 * rows[-1]['pair_map']['5']:.2f}"
    assert cells["untrained"]["mAP@5 ↑"] == "–"
    recalls = [float(cells["CTP"][f"{side}R@{k} ↑"]) for side in "TI" for k in (1, 5, 10)]
    assert float(cells["CTP"]["Rm ↑"]) == pytest.approx(sum(recalls) / 6, abs=0.01)


def test_secoco_and_sevige_runs_complete(protocol: Callable[..., Path], tmp_path: Path) -> None:
    groups = [
        {"name": "animals", "supercategories": ["animal"]},
        {"name": "others", "supercategories": ["vehicle", "person"]},
    ]
    secoco = protocol("secoco", source={"groups": groups, "val": 1, "test": 2}, methods=["zero_shot"])
    output = bench_run(secoco, secoco_files(tmp_path / "coco"), tmp_path / "secoco")
    assert "task 2 of 2 (others)" in output
    domains = [
        {"name": "animals", "categories": {"dog": ["dog"], "cat": ["cat", "cats"]}},
        {"name": "vehicles", "categories": {"bus": ["bus"]}},
    ]
    source = {"domains": domains, "val": 1, "test": 1}
    sevige = protocol("sevige", source=source, methods=["zero_shot"])
    output = bench_run(sevige, sevige_files(tmp_path / "genome"), tmp_path / "sevige")
    assert "task 2 of 2 (vehicles)" in output


def test_labeled_pairs_do_not_become_videos_of_the_task(industries: list[TaskData]) -> None:
    home, food = industries
    for task in (home, food):
        assert isinstance(task, LabeledTask)
        assert (len(task.train), len(task.test), len(task.clips)) == (4, 2, 6)
        assert (len(task.pair_queries), len(task.pair_gallery)) == (2, 4)
        assert load_frames(task.pair_gallery).shape == (4, 1, 56, 56, 3)


def test_fused_precisions_grow_with_the_tasks_and_equal_loops(
    backbone: Backbone, industries: list[TaskData]
) -> None:
    method = start_method("ctp", backbone, {"seed": 1, **ONE_LAYER}, None)

    def by_hand(tasks: list[TaskData]) -> float:
        """Compute mAP@1: the share of queries whose best pair has their label."""
        queries = [clip for task in tasks for clip in getattr(task, "pair_queries", ())]
        gallery = [clip for task in tasks for clip in getattr(task, "pair_gallery", ())]
        fused = [
            method.encode_pairs(load_frames([clip]), clip.captions[:1])[0] for clip in (*queries, *gallery)
        ]
        right = 0
        for number, query in enumerate(queries):
            scores = torch.stack([fused[number] @ other for other in fused[len(queries) :]])
            right += gallery[int(scores.argmax())].category == query.category
        return right / len(queries)

    for tasks in (industries[:1], industries):
        precisions = fused_pair_precisions(method, tasks)
        assert precisions is not None
        assert precisions[1] == pytest.approx(by_hand(tasks))


def test_methods_without_a_multi_modal_encoder_have_no_precisions(
    backbone: Backbone, industries: list[TaskData]
) -> None:
    towers = start_method("finetune", backbone, {}, None)
    retrieval = start_method("ctp", backbone, {"masked_language": False}, None)
    for method in (towers, retrieval):
        assert fused_pair_precisions(method, industries) is None
        with pytest.raises(MethodError, match="multi-modal encoder"):
            method.encode_pairs(load_frames(industries[0].clips[:1]), ["a cup"])
    plain = [TaskData(task.task_id, task.name, task.clips) for task in industries]
    assert fused_pair_precisions(start_method("ctp", backbone, ONE_LAYER, None), plain) is None
