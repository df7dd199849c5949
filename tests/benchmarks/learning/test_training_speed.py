"""Training speed: equal data for all loop variants, and the effect of each optimization."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.errors import ProtocolError
from benchmarks.learning import training_speed
from benchmarks.learning.run_costs import ResourceMeter
from benchmarks.learning.training_speed import LOOPS, SpeedPlan, measure_speed, speed_table
from benchmarks.rivals import start_method
from models.encoders.tower_forward import encode_texts
from trainer.task_data import load_frames

pytestmark = pytest.mark.slow  # each test trains; the loop itself is tested in tests/trainer

PLAN = SpeedPlan(batch=2, frames=2, steps=2, repeats=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


def test_report_has_rates_and_ratios_of_every_loop(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    class Timed(ResourceMeter):
        """The n-th run takes n seconds."""

        def phase(self, name):  # type: ignore[no-untyped-def]
            runs.append(name)
            self.seconds[name] = [float(len(runs))]
            return super().phase("really")

    monkeypatch.setattr(training_speed, "ResourceMeter", Timed)
    monkeypatch.setattr(training_speed, "measure_peak_in_process", lambda loop, plan, folder: 7.0)
    found = measure_speed(PLAN, folder)
    labels = [
        loop.label for loop in LOOPS if loop.kept
    ]  # of `tiny` nothing is frozen below the first adapter
    n = len(labels)
    assert runs == labels[::-1] + labels + labels[::-1]  # the first turn warms up
    for place, row in enumerate(found.rows):
        seconds = [n + place + 1, 3 * n - place]
        assert row.rates == [4 / s for s in seconds]
        assert row.ratios == pytest.approx([(n + 1) / seconds[0], 3 * n / seconds[1]])
        assert row.peak_mib == (7.0 if row.loop.product or place == 0 else None)
    assert found.padding[0] < found.padding[1] < 1
    assert found.reading > 0
    found.save(tmp_path)
    assert len(json.loads((tmp_path / "speed.json").read_text())["rows"]) == n
    written = (tmp_path / "speed.md").read_text()
    assert written == speed_table(found)
    assert written.count("\n| ") == n + 2


def test_all_loops_use_the_same_frames_and_captions(folder: Path) -> None:
    bench = training_speed.SpeedBenchmark(PLAN, folder)
    assert len(bench.task.pairs) == 4
    clips = list(bench.task.clips)
    assert torch.equal(bench.decode(clips), load_frames(clips))
    texts = [pair.caption for pair in bench.task.pairs]
    ids, padded = bench.backbone.tokenize(texts), bench.padded_backbone.tokenize(texts)
    assert padded.shape == (4, bench.backbone.text.context_length)
    assert padded[:, : ids.shape[1]].equal(ids)
    torch.testing.assert_close(
        *(encode_texts(b, b.tokenize(texts)) for b in (bench.backbone, bench.padded_backbone))
    )
    lengths = [int(end) + 1 for end in bench.backbone.end_of_text(ids)]
    assert bench.padding(LOOPS[0]) == pytest.approx(1 - np.mean(lengths) / padded.shape[1])


def test_straightforward_loop_decodes_at_every_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = training_speed.SpeedBenchmark(PLAN, folder)
    decoded: list[int] = []
    monkeypatch.setattr(bench, "decode", lambda clips: (decoded.append(len(clips)), load_frames(clips))[1])
    for loop in LOOPS:
        decoded.clear()
        bench.run(loop, ResourceMeter(torch.device("cpu")))
        assert decoded == ([] if loop.cached else [2, 2]), loop.label


def test_frozen_blocks_run_at_every_step_only_without_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_speed, "start_method", lambda *given: _with_two_frozen_blocks(*given))
    bench = training_speed.SpeedBenchmark(PLAN, folder)
    assert bench.freezes
    seen: list[int] = []
    bench.backbone.visual_blocks[1].ln_1.register_forward_pre_hook(
        lambda _, given: seen.append(len(given[0]))
    )
    for loop in LOOPS:
        if loop.product:
            seen.clear()
            bench.run(loop, ResourceMeter(torch.device("cpu")))
            # The memory of one and two videos is measured, then two videos are learned in each of two steps.
            assert seen == ([1, 1] if loop.kept else [1, 2, 2]), loop.label


def _with_two_frozen_blocks(name: str, backbone: Any, settings: dict[str, Any], previous: None) -> Any:
    return start_method(name, backbone, {**settings, "ffa_layers": 2}, previous)


def test_peak_memory_grows_with_the_batch(folder: Path) -> None:
    small, large = (
        training_speed.measure_peak(LOOPS[1], SpeedPlan(batch=b, frames=2), folder, 1) for b in (2, 24)
    )
    assert 0 <= small < large


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (SpeedPlan(method="zero_shot"), "zero_shot.*is not trainable"),
        (SpeedPlan(backbone="open_clip:ViT-nothing/random"), "no model 'ViT-nothing'"),
    ],
)
def test_unsupported_plan_is_refused(plan: SpeedPlan, message: str, folder: Path) -> None:
    with pytest.raises(ProtocolError, match=message):
        measure_speed(plan, folder)


def test_random_backbone_has_the_shape_of_its_model() -> None:
    backbone = training_speed.load_benchmark_backbone(
        SpeedPlan(backbone="open_clip:ViT-S-32/random", frames=3)
    )
    assert backbone.spec == (3, 224)
    assert backbone.dim == 384
