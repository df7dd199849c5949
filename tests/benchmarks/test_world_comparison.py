"""Runs on two small worlds: galleries, joint training with the same router, report, and remembered outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.errors import ProtocolError
from benchmarks.learning.output_memory import remember_outputs
from benchmarks.learning.protocol import load_protocol, parse_variant
from benchmarks.world_comparison import compare_worlds, write_world_report
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders.tower_forward import encode_frames


@pytest.mark.slow
def test_variants_are_compared_on_every_world_and_order(write: Callable[..., str], tmp_path: Path) -> None:
    protocol = load_protocol(write())
    names = ["zero_shot", "joint@epochs=1"]
    runs = list(
        compare_worlds(
            protocol,
            [parse_variant(name) for name in names],
            backbone="tiny",
            worlds=2,
            orders=2,
            cache=tmp_path,
        )
    )
    assert [(run.world, run.run.label, run.run.seed) for run in runs] == [
        (world, name, order)
        for world in (3, 4)
        for name, orders in zip(names, (1, 2), strict=True)
        for order in range(orders)
    ]
    assert [run.is_joint for run in runs[:3]] == [False, True, True]
    for run in runs:
        assert {len(ranks) for ranks in run.run.ranks["global_all"].values()} == {6}
    table = write_world_report(tmp_path / "out", runs, "cinestrata bench worlds small", "tiny")
    assert "2 worlds (3, 4) of 2 domains with 12 queries; orders 0, 1" in table
    assert "difference to joint@epochs=1" in table
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["runs"]) == len(runs)


def test_other_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="not a video world"):
        next(compare_worlds(load_protocol("folder"), [], backbone="tiny", worlds=1, orders=1, cache=tmp_path))


@pytest.fixture(scope="module")
def small_backbone() -> Backbone:
    return load_backbone("small", 1)


@pytest.mark.slow
def test_joint_training_in_closed_form_has_the_router_of_the_sequential_method(
    write: Callable[..., str], tmp_path: Path
) -> None:
    protocol = load_protocol(write(frames=1, settings={}))
    variants = [parse_variant(name) for name in ("analytic", "analytic@jointly=true")]
    sequential, joint = compare_worlds(
        protocol, variants, backbone="small", worlds=1, orders=1, cache=tmp_path
    )
    assert sequential.run.routed == joint.run.routed
    assert sequential.run.forgetting("local") == 0
    assert joint.run.forgetting("local") is None
    last = [np.mean([rank <= 1 for rank in ranks]) * 100 for ranks in joint.run.ranks["global"].values()]
    assert joint.run.growth[-1] == pytest.approx(last)
    assert joint.run.growth[0][0] >= joint.run.growth[1][0], "a larger gallery has more competitors"
    assert sequential.run.ranks["local"] != joint.run.ranks["local"]


def test_remembered_outputs_equal_those_of_the_backbone(small_backbone: Backbone, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = torch.from_numpy(rng.integers(0, 256, (2, 1, 224, 224, 3), np.uint8))
    texts = small_backbone.tokenize(["a red circle", "two stars spin"])

    def outputs() -> tuple[torch.Tensor, ...]:
        videos = encode_frames(small_backbone, frames)[0]
        return small_backbone.video_features(frames), videos, small_backbone.text_vectors(texts)

    expected = outputs()
    for _ in range(2):  # the second memory reads the files of the first
        remember_outputs(small_backbone, tmp_path)
        for value, reference in zip(outputs(), expected, strict=True):
            torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-5)
    assert len(list(tmp_path.rglob("*.npy"))) == 2 * len(frames), "tokens and features of each video"
