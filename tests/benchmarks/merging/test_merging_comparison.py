"""Comparison of search variants: recall, selection of parameters, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from benchmarks.errors import ProtocolError
from benchmarks.learning.method_runner import run_method
from benchmarks.merging.comparison import SearchVariant, VariantResult, evaluate_variants
from benchmarks.merging.learned_shards import LearnedShards, learn_shards
from benchmarks.merging.merging_rules import SERVED
from cli.main import app
from models.backbones.backbone_loading import load_backbone
from tests.word_routing import WordRouting
from trainer.task_data import Clip, TaskData

Array = npt.NDArray[Any]
TASKS = 3


def _units(rng: np.random.Generator, *shape: int) -> Array:
    vectors = rng.standard_normal(shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


class HashEncoder(WordRouting):
    """Pseudo-random vectors seeded by text, task and mode."""

    modes = ("latest", "pinned")

    def token_presence(self, texts: Sequence[str]) -> Array:
        return np.array([[float(word in text.split()) for word in WORDS] for text in texts], np.float32)

    def encode_with_backbone(self, texts: Sequence[str]) -> Array:
        return np.stack([hash_vector("frozen", text) for text in texts])

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Array:
        return np.stack([[hash_vector(mode, task, text) for task in tasks] for text in texts])


WORDS = ("a", "b", "c", "red", "blue")


def hash_vector(*key: str, shape: tuple[int, ...] = (8,)) -> Array:
    seed = int.from_bytes("|".join(key).encode()[-24:], "big")
    return _units(np.random.default_rng(seed), *shape)


def learned_shards(tests: Callable[[str], str] = lambda caption: caption) -> LearnedShards:
    """Three tasks with 4 training, 3 validation and 5 test videos; ``tests`` rewrites captions of the last."""
    tasks = []
    for task in WORDS[:TASKS]:
        clips = []
        for number, split in enumerate(["train"] * 4 + ["val"] * 3 + ["test"] * 5):
            captions = tuple(f"{task} {color} {number}" for color in WORDS[3:])
            given = tuple(map(tests, captions)) if split == "test" else captions
            clips.append(Clip(f"{task}{number}", number, Path(), given, split))  # type: ignore[arg-type]
        tasks.append(TaskData(task, task, tuple(clips)))
    # A video vector is close to the pinned vectors of its captions before they are rewritten.
    videos, frames = [], []
    for task in tasks:
        near = [
            sum(hash_vector("pinned", task.name, f"{task.name} {color} {n}") for color in WORDS[3:])
            for n in range(len(task.clips))
        ]
        shots = np.stack(near)[:, None] + 0.5 * hash_vector(task.name, shape=(len(near), 4, 8))
        frames.append((shots / np.linalg.norm(shots, axis=2, keepdims=True)).astype(np.float32))
        pooled = shots.mean(axis=1)
        videos.append((pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).astype(np.float32))
    profiles = np.array([[float(word in (task, *WORDS[3:])) for word in WORDS] for task in WORDS[:TASKS]])
    return LearnedShards(tasks, HashEncoder(), profiles.astype(np.float32), videos, frames)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def results() -> dict[SearchVariant, VariantResult]:
    return {one.variant: one for one in evaluate_variants(learned_shards())}


@pytest.mark.parametrize("mode", HashEncoder.modes)
def test_recall_equals_a_direct_search(results: dict[SearchVariant, VariantResult], mode: str) -> None:
    learned = learned_shards()
    gallery = [
        (task.task_id, clip.id, vector, shots)
        for task, vectors, frames in zip(learned.tasks, learned.videos, learned.frames or (), strict=True)
        for clip, vector, shots in zip(task.clips, vectors, frames, strict=True)
        if clip.split == "test"
    ]
    found: dict[str, list[float]] = {"mean": [], "max": [], "routed": []}
    for task in learned.tasks:
        for clip in task.test:
            for text in clip.captions:
                queries = {task_id: hash_vector(mode, task_id, text) for task_id in WORDS[:TASKS]}
                mean = [float(queries[task_id] @ vector) for task_id, _, vector, _ in gallery]
                ids = [video for _, video, _, _ in gallery]
                scores = {
                    "mean": mean,
                    "max": [
                        max(float(queries[task_id] @ shot) for shot in shots)
                        for task_id, _, _, shots in gallery
                    ],
                    "routed": [
                        s + 10 * (task_id == task.task_id)
                        for s, (task_id, *_) in zip(mean, gallery, strict=True)
                    ],
                }
                for name, values in scores.items():
                    own = values[ids.index(clip.id)]
                    found[name].append(1 + sum(value > own + 1e-6 for value in values))
    variants = {
        "mean": SearchVariant(mode, "mean", "cosine"),
        "max": SearchVariant(mode, "max", "cosine"),
        "routed": SearchVariant(mode, "mean", "cosine", "words", 1),
    }
    for name, variant in variants.items():
        recall = results[variant].recall
        for k, share in ((1, recall.r1), (5, recall.r5), (10, recall.r10)):
            assert share == pytest.approx(sum(rank <= k for rank in found[name]) / len(found[name]))
        assert recall.medr == np.median(found[name])
    assert results[variants["routed"]].accuracy == 1.0


def test_gain_is_relative_to_the_served_variant(results: dict[SearchVariant, VariantResult]) -> None:
    served = results[SearchVariant("pinned", "mean", SERVED)]
    assert (served.gain, served.error) == (0, 0)
    for one in results.values():
        mean = [(m.recall.r1 + m.recall.r5 + m.recall.r10) / 3 for m in (one, served)]
        assert one.gain == pytest.approx(100 * (mean[0] - mean[1]))


def test_selection_does_not_depend_on_test_queries(results: dict[SearchVariant, VariantResult]) -> None:
    poisoned = {
        one.variant: one
        for one in evaluate_variants(learned_shards(lambda caption: "c poison " + caption[::-1]))
    }
    fitted = {variant: one for variant, one in results.items() if one.validation is not None}
    assert len(fitted) > 40
    for variant, one in fitted.items():
        assert (one.chosen, one.validation) == (poisoned[variant].chosen, poisoned[variant].validation)
    assert any(one.recall != poisoned[variant].recall for variant, one in results.items())


def test_training_captions_replace_missing_validation_captions(
    results: dict[SearchVariant, VariantResult],
) -> None:
    learned = learned_shards()
    tasks = [
        replace(task, clips=tuple(replace(c, captions=()) if c.split == "val" else c for c in task.clips))
        for task in learned.tasks
    ]
    found = {one.variant: one for one in evaluate_variants(replace(learned, tasks=tasks))}
    variant = SearchVariant("pinned", "mean", "cosine")
    assert found[variant].recall == results[variant].recall
    assert found[variant].validation != results[variant].validation


def test_methods_without_frame_vectors_use_mean_pooling_only(
    results: dict[SearchVariant, VariantResult],
) -> None:
    pooled = {one.variant: one for one in evaluate_variants(replace(learned_shards(), frames=None))}
    assert pooled == {variant: one for variant, one in results.items() if variant.frames == "mean"}


# --- learning, and the command ---


def test_learn_shards_refuses_joint_training_and_tasks_without_captions(tasks: list[TaskData]) -> None:
    backbone = load_backbone("tiny", 2)
    with pytest.raises(ProtocolError, match="joint embeds all videos with one encoder"):
        learn_shards("joint", backbone, tasks, {})
    silent = replace(tasks[1], clips=tuple(replace(clip, captions=()) for clip in tasks[1].clips))
    with pytest.raises(ProtocolError, match="microscope has no training captions"):
        learn_shards("zero_shot", backbone, [tasks[0], silent], {})


@pytest.mark.slow
def test_merging_command_agrees_with_the_method_runner(
    write: Callable[..., str], tasks: list[TaskData], tmp_path: Path
) -> None:
    chosen = {"experts": 2, "rank": 2}
    out, method = tmp_path / "out", "ffa_tame@" + "@".join(f"{k}={v}" for k, v in chosen.items())
    options = ["--method", method, "--seeds", "1", "--device", "cpu", "--cache", str(tmp_path / "frames")]
    completed = CliRunner().invoke(app, ["bench", "merging", write(), *options, "--out", str(out)])
    assert completed.exit_code == 0, completed.output
    assert (out / "table.md").read_text().split("\n\n", 1)[1].strip() in completed.output
    (path,) = (out / "results").iterdir()
    result = json.loads(path.read_text())
    assert result["vectors"] == {"mean": 1, "max": 2, "softmax": 2}
    assert {"torch", "numpy"} <= set(result["facts"]["versions"])
    backbone = load_backbone("tiny", 2)
    settings = {"epochs": 1, "batch_size": 4, **chosen}
    run = run_method("ffa_tame", backbone, tasks, seed=0, settings=settings, queries="all")
    row = run.rows[-1]
    assert row is not None
    found = {
        (one["variant"]["queries"], one["variant"]["rule"]): one["recall"]
        for one in result["measures"]
        if one["variant"]["frames"] == "mean" and not one["variant"]["router"]
    }
    for mode in ("latest", "pinned"):
        assert found[mode, "cosine"] == pytest.approx(row["pooled"][mode]["global_raw"])
        assert found[mode, SERVED] == pytest.approx(row["pooled"][mode]["global"])


def test_merging_command_refuses_measurement_settings(write: Callable[..., str], tmp_path: Path) -> None:
    completed = CliRunner().invoke(
        app,
        ["bench", "merging", write(), "--method", "zero_shot@prior=0", "--cache", str(tmp_path / "frames")],
    )
    assert completed.exit_code == 1
    assert "compares reindex and prior" in completed.output
