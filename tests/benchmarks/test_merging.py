"""Merging: every rule against a slow loop, nothing learned from test queries, and the measures against the runner's."""

from __future__ import annotations

import json
import math
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
from benchmarks.merging.comparison import (
    SERVED,
    Learned,
    Measure,
    Meeting,
    Way,
    _gain,
    learn_shards,
    measure_merging,
    rules,
)
from benchmarks.merging.score_calibration import (
    Affine,
    bank_norms,
    centroids,
    dynamic_inverted_softmax,
    fit_affine,
    fit_scales,
    hubs,
    inverted_softmax,
    keep_candidates,
    late_interaction,
    own_shard,
    prototype_weights,
    shard_posteriors,
    shard_statistics,
    standardise,
)
from cli.main import app
from models.backbones.backbone_loading import load_backbone
from trainer.evaluation.retrieval_metrics import rank_by_id
from trainer.task_data import Clip, TaskData

Array = npt.NDArray[Any]
TASKS = 3


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def meeting(rng: np.random.Generator) -> Meeting:
    return _meeting(rng, texts=24, videos=15)


def _meeting(rng: np.random.Generator, texts: int, videos: int, bank: int = 21) -> Meeting:
    """Shards whose scores differ in mean and spread, every task with captions and videos."""
    rows, columns, bank_rows = (np.arange(n) % TASKS for n in (texts, videos, bank))
    mean, spread = np.array([0.1, 0.4, 0.2])[columns], np.array([0.05, 0.1, 0.3])[columns]
    truth = np.array([rng.choice(np.flatnonzero(columns == task)) for task in rows])
    cosines = mean + spread * rng.standard_normal((texts, videos))
    cosines[np.arange(texts), truth] += 0.1
    evidence = rng.standard_normal((texts, TASKS)) + 3 * (rows[:, None] == np.arange(TASKS))
    evidence -= np.log(np.exp(evidence).sum(axis=1, keepdims=True))
    return Meeting(
        cosines=cosines,
        rows=rows,
        columns=columns,
        truth=truth,
        evidence=evidence,
        bank=mean + spread * rng.standard_normal((bank, videos)),
        bank_rows=bank_rows,
    )


# --- rules ---


def test_z_scores(meeting: Meeting) -> None:
    mean, deviation = shard_statistics(meeting.bank, meeting.bank_rows, meeting.columns)
    scores = standardise(meeting.cosines, meeting.columns, mean, deviation)
    for text in range(len(meeting.rows)):
        for video, task in enumerate(meeting.columns):
            seen = [
                meeting.bank[b, v]
                for b, of in enumerate(meeting.bank_rows)
                for v, its in enumerate(meeting.columns)
                if of == its == task
            ]
            mu = sum(seen) / len(seen)
            sigma = math.sqrt(sum((s - mu) ** 2 for s in seen) / len(seen))
            assert scores[text, video] == pytest.approx((meeting.cosines[text, video] - mu) / sigma)


@pytest.mark.parametrize("own", [True, False])
def test_the_inverted_softmax_ranks_as_its_definition(meeting: Meeting, own: bool) -> None:
    beta = 7.0
    bank = own_shard(meeting.bank, meeting.bank_rows, meeting.columns) if own else meeting.bank
    scores = inverted_softmax(meeting.cosines, bank_norms(bank, beta))
    for text in range(len(meeting.rows)):
        for video, task in enumerate(meeting.columns):
            captions = [b for b, of in enumerate(meeting.bank_rows) if of == task or not own]
            below = sum(math.exp(beta * meeting.bank[b, video]) for b in captions) / len(captions)
            share = math.exp(beta * meeting.cosines[text, video]) / below
            assert math.exp(beta * scores[text, video]) == pytest.approx(share)


def test_qb_norm_is_inverted_softmax_where_the_best_video_is_a_hub(meeting: Meeting) -> None:
    beta, bank = 20.0, meeting.bank
    norms = bank_norms(bank, beta)
    scores = dynamic_inverted_softmax(meeting.cosines, norms, hubs(bank))
    known = {max(range(bank.shape[1]), key=lambda v: bank[b, v]) for b in range(len(bank))}
    misled = 0
    for text, row in enumerate(meeting.cosines):
        hub = max(range(len(row)), key=lambda v: row[v]) in known
        misled += hub
        np.testing.assert_allclose(scores[text], row - norms if hub else row)
    assert 0 < misled < len(meeting.rows), "both cases are to occur"


def _likelihood(meeting: Meeting, fitted: Affine, own: bool = False) -> float:
    """Mean log-likelihood of the captions' videos, less the ridge."""
    total = 0.0
    for text, row in enumerate(meeting.cosines):
        lift = fitted.shift + fitted.words * meeting.evidence[text]
        scores = {
            video: fitted.scale[task] * row[video] + lift[task]
            for video, task in enumerate(meeting.columns)
            if not own or task == meeting.rows[text]
        }
        total += scores[meeting.truth[text]] - math.log(sum(math.exp(s) for s in scores.values()))
    ridge = np.mean(np.log(fitted.scale) ** 2) + np.mean(fitted.shift**2) + fitted.words**2
    return float(total / len(meeting.rows) - 1e-3 * ridge)


def _others(fitted: Affine, what: str) -> list[Affine]:
    """Each temperature or each bias alone a little or much more, or less."""
    steps = [step * one for step in (-1.0, -0.1, 0.1, 1.0) for one in np.eye(TASKS)]
    if what == "scale":
        return [replace(fitted, scale=fitted.scale * np.exp(step)) for step in steps]
    return [replace(fitted, shift=fitted.shift + step) for step in steps]


def test_no_other_temperature_is_likelier(meeting: Meeting) -> None:
    fitted = fit_scales(meeting.cosines, meeting.rows, meeting.columns, meeting.truth)
    assert not fitted.shift.any()
    best = _likelihood(meeting, fitted, own=True)
    assert all(_likelihood(meeting, one, own=True) < best for one in _others(fitted, "scale"))


def test_no_other_temperature_bias_or_weight_of_words_is_likelier(meeting: Meeting) -> None:
    to_json_value = fit_affine(meeting.cosines, meeting.columns, meeting.truth)
    assert to_json_value.words == 0
    weighed = fit_affine(meeting.cosines, meeting.columns, meeting.truth, meeting.evidence)
    assert weighed.words > 0
    others = [replace(weighed, words=weighed.words + step) for step in (-0.3, 0.3)]
    assert all(_likelihood(meeting, one) < _likelihood(meeting, weighed) for one in others)
    for fitted in (to_json_value, weighed):
        best = _likelihood(meeting, fitted)
        assert all(_likelihood(meeting, one) < best for w in ("scale", "shift") for one in _others(fitted, w))


def test_temperature_one_and_bias_zero_are_raw(meeting: Meeting) -> None:
    raw = Affine(np.ones(TASKS), np.zeros(TASKS))
    np.testing.assert_array_equal(raw(meeting.cosines, meeting.columns), meeting.cosines)
    np.testing.assert_array_equal(raw(meeting.cosines, meeting.columns, meeting.evidence), meeting.cosines)


def test_posteriors_are_distributions_over_each_shard(meeting: Meeting) -> None:
    scores = shard_posteriors(meeting.cosines, meeting.columns)
    for text, row in enumerate(meeting.cosines):
        for video, task in enumerate(meeting.columns):
            total = sum(math.exp(row[v]) for v, of in enumerate(meeting.columns) if of == task)
            assert math.exp(scores[text, video]) == pytest.approx(math.exp(row[video]) / total)


@pytest.mark.parametrize("r", [1, 2])
def test_candidates_come_first_in_the_order_of_their_scores(meeting: Meeting, r: int) -> None:
    kept = keep_candidates(meeting.cosines, meeting.columns, meeting.evidence, r)
    for text, row in enumerate(meeting.cosines):
        likeliest = sorted(range(TASKS), key=lambda task: -meeting.evidence[text, task])[:r]
        expected = sorted(range(len(row)), key=lambda v: (meeting.columns[v] not in likeliest, -row[v]))
        assert np.argsort(-kept[text]).tolist() == expected


def test_all_candidates_are_no_routing(meeting: Meeting) -> None:
    kept = keep_candidates(meeting.cosines, meeting.columns, meeting.evidence, TASKS)
    np.testing.assert_array_equal(kept, meeting.cosines)


def _units(rng: np.random.Generator, *shape: int) -> Array:
    vectors = rng.standard_normal(shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def test_one_centroid_is_the_mean_direction(rng: np.random.Generator) -> None:
    vectors = _units(rng, 20, 6)
    mean = vectors.sum(axis=0)
    np.testing.assert_allclose(centroids(vectors, 1, rng)[0], mean / np.linalg.norm(mean), rtol=1e-5)


def test_centroids_find_clusters_and_no_vector_has_a_nearer_one(rng: np.random.Generator) -> None:
    middles = np.eye(6, dtype=np.float32)[:4]
    vectors = np.repeat(middles, 5, axis=0) + 0.05 * rng.standard_normal((20, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = centroids(vectors, 4, rng)
    for middle in range(4):
        mean = vectors[5 * middle : 5 * middle + 5].sum(axis=0)
        assert min(np.abs(found - mean / np.linalg.norm(mean)).max(axis=1)) < 1e-5
    assert len(centroids(vectors[:2], 4, rng)) == 2


def test_a_text_is_weighed_by_its_nearest_prototype(rng: np.random.Generator) -> None:
    texts, prototypes = _units(rng, 5, 4), [_units(rng, k, 4) for k in (1, 3)]
    weights = prototype_weights(texts, prototypes)
    for text, vector in enumerate(texts):
        for task, owned in enumerate(prototypes):
            assert weights[text, task] == pytest.approx(max(float(vector @ p) for p in owned))


@pytest.mark.parametrize("tau", [0.0, 0.05])
def test_late_interaction(rng: np.random.Generator, tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.merging.score_calibration._TEXTS", 3)
    texts, frames = _units(rng, 7, 5), _units(rng, 4, 3, 5)
    scores = late_interaction(texts, frames, tau)
    for text, vector in enumerate(texts):
        for video, shots in enumerate(frames):
            cosines = [float(vector @ shot) for shot in shots]
            weights = [math.exp(c / tau) for c in cosines] if tau else []
            pooled = (
                sum(w * c for w, c in zip(weights, cosines, strict=True)) / sum(weights)
                if tau
                else max(cosines)
            )
            assert scores[text, video] == pytest.approx(pooled, abs=1e-6)


@pytest.mark.parametrize("tau", [0.0, 0.01, 1.0])
def test_with_one_frame_late_interaction_is_mean_pooling(rng: np.random.Generator, tau: float) -> None:
    texts, videos = _units(rng, 7, 5), _units(rng, 4, 5)
    np.testing.assert_allclose(late_interaction(texts, videos[:, None], tau), texts @ videos.T, atol=1e-6)


def test_the_gain_takes_captions_of_a_video_as_one_sample(rng: np.random.Generator) -> None:
    differences, videos = rng.standard_normal(12), np.arange(12) % 4
    mean, error = _gain(differences, videos)
    parts = [sum(d - mean for d, v in zip(differences, videos, strict=True) if v == one) for one in range(4)]
    assert (mean, error) == pytest.approx((sum(differences) / 12, math.sqrt(sum(p * p for p in parts)) / 12))
    once, again = (
        _gain(differences, np.arange(12)),
        _gain(np.repeat(differences, 5), np.repeat(np.arange(12), 5)),
    )
    assert again == pytest.approx(once), "asking five times for the same is no evidence"


def test_no_rule_sees_one_query_beside_another(rng: np.random.Generator, meeting: Meeting) -> None:
    training, tuning = _meeting(rng, 21, 15), _meeting(rng, 18, 9)
    alone = replace(
        meeting,
        cosines=meeting.cosines[:1],
        rows=meeting.rows[:1],
        truth=meeting.truth[:1],
        evidence=meeting.evidence[:1],
    )
    for name, candidates in rules(training, tuning).items():
        for one in candidates:
            np.testing.assert_allclose(
                one.score(alone), one.score(meeting)[:1], err_msg=f"{name} {one.chosen}"
            )


# --- measuring ---


class Coder:
    """Vectors of texts made of their hash; tasks and modes are drawn apart."""

    modes = ("latest", "pinned")

    def token_presence(self, texts: Sequence[str]) -> Array:
        return np.array([[float(word in text.split()) for word in WORDS] for text in texts], np.float32)

    def encode_with_backbone(self, texts: Sequence[str]) -> Array:
        return np.stack([_drawn("frozen", text) for text in texts])

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Array:
        return np.stack([[_drawn(mode, task, text) for task in tasks] for text in texts])


WORDS = ("a", "b", "c", "red", "blue")


def _drawn(*key: str, shape: tuple[int, ...] = (8,)) -> Array:
    seed = int.from_bytes("|".join(key).encode()[-24:], "big")
    return _units(np.random.default_rng(seed), *shape)


def _learned(tests: Callable[[str], str] = lambda caption: caption) -> Learned:
    """Three tasks with 4 training, 3 validation and 5 test videos; ``tests`` rewrites captions of the last."""
    tasks = []
    for task in WORDS[:TASKS]:
        clips = []
        for number, split in enumerate(["train"] * 4 + ["val"] * 3 + ["test"] * 5):
            captions = tuple(f"{task} {colour} {number}" for colour in WORDS[3:])
            given = tuple(map(tests, captions)) if split == "test" else captions
            clips.append(Clip(f"{task}{number}", number, Path(), given, split))  # type: ignore[arg-type]
        tasks.append(TaskData(task, task, tuple(clips)))
    # A video lies near its captions, as they are before they are rewritten, in mode pinned.
    videos, frames = [], []
    for task in tasks:
        near = [
            sum(_drawn("pinned", task.name, f"{task.name} {colour} {n}") for colour in WORDS[3:])
            for n in range(len(task.clips))
        ]
        shots = np.stack(near)[:, None] + 0.5 * _drawn(task.name, shape=(len(near), 4, 8))
        frames.append((shots / np.linalg.norm(shots, axis=2, keepdims=True)).astype(np.float32))
        pooled = shots.mean(axis=1)
        videos.append((pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).astype(np.float32))
    profiles = np.array([[float(word in (task, *WORDS[3:])) for word in WORDS] for task in WORDS[:TASKS]])
    return Learned(tasks, Coder(), profiles.astype(np.float32), videos, frames)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measures() -> dict[Way, Measure]:
    return {one.way: one for one in measure_merging(_learned())}


@pytest.mark.parametrize("mode", Coder.modes)
def test_ranks_are_those_of_a_slow_search(measures: dict[Way, Measure], mode: str) -> None:
    learned = _learned()
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
                asked = {of: _drawn(mode, of, text) for of in WORDS[:TASKS]}
                mean = [float(asked[of] @ vector) for of, _, vector, _ in gallery]
                ids = [video for _, video, _, _ in gallery]
                scores = {
                    "mean": mean,
                    "max": [max(float(asked[of] @ shot) for shot in shots) for of, _, _, shots in gallery],
                    "routed": [
                        s + 10 * (of == task.task_id) for s, (of, *_) in zip(mean, gallery, strict=True)
                    ],
                }
                for name, values in scores.items():
                    own = values[ids.index(clip.id)]
                    found[name].append(1 + sum(value > own + 1e-6 for value in values))
    ways = {
        "mean": Way(mode, "mean", "cosine"),
        "max": Way(mode, "max", "cosine"),
        "routed": Way(mode, "mean", "cosine", "words", 1),
    }
    for name, way in ways.items():
        recall = measures[way].recall
        for k, share in ((1, recall.r1), (5, recall.r5), (10, recall.r10)):
            assert share == pytest.approx(sum(rank <= k for rank in found[name]) / len(found[name]))
        assert recall.medr == np.median(found[name])
    assert measures[ways["routed"]].accuracy == 1.0


def test_what_is_served_is_the_reference(measures: dict[Way, Measure]) -> None:
    served = measures[Way("pinned", "mean", SERVED)]
    assert (served.gain, served.error) == (0, 0)
    for one in measures.values():
        mean = [(m.recall.r1 + m.recall.r5 + m.recall.r10) / 3 for m in (one, served)]
        assert one.gain == pytest.approx(100 * (mean[0] - mean[1]))


def test_nothing_is_learned_from_test_queries(measures: dict[Way, Measure]) -> None:
    poisoned = {
        one.way: one for one in measure_merging(_learned(lambda caption: "c poison " + caption[::-1]))
    }
    fitted = {way: one for way, one in measures.items() if one.validation is not None}
    assert len(fitted) > 40
    for way, one in fitted.items():
        assert (one.chosen, one.validation) == (poisoned[way].chosen, poisoned[way].validation)
    assert any(one.recall != poisoned[way].recall for way, one in measures.items())


def test_without_validation_videos_training_captions_serve(measures: dict[Way, Measure]) -> None:
    learned = _learned()
    tasks = [
        replace(task, clips=tuple(replace(c, captions=()) if c.split == "val" else c for c in task.clips))
        for task in learned.tasks
    ]
    found = {one.way: one for one in measure_merging(replace(learned, tasks=tasks))}
    way = Way("pinned", "mean", "cosine")
    assert found[way].recall == measures[way].recall
    assert found[way].validation != measures[way].validation


def test_methods_without_frame_vectors_are_mean_pooled_alone(measures: dict[Way, Measure]) -> None:
    pooled = {one.way: one for one in measure_merging(replace(_learned(), frames=None))}
    assert pooled == {way: one for way, one in measures.items() if way.frames == "mean"}


# --- learning, and the command ---


def test_what_cannot_be_merged_is_refused(tasks: list[TaskData]) -> None:
    backbone = load_backbone("tiny", 2)
    with pytest.raises(ProtocolError, match="joint embeds everything anew"):
        learn_shards("joint", backbone, tasks, {})
    silent = replace(tasks[1], clips=tuple(replace(clip, captions=()) for clip in tasks[1].clips))
    with pytest.raises(ProtocolError, match="microscope has no training captions"):
        learn_shards("zero_shot", backbone, [tasks[0], silent], {})


def test_the_command_measures_what_the_runner_measures(
    write: Callable[..., str], tasks: list[TaskData], tmp_path: Path
) -> None:
    chosen = {"experts": 2, "rank": 2}
    out, method = tmp_path / "out", "ffa_tame@" + "@".join(f"{k}={v}" for k, v in chosen.items())
    options = ["--method", method, "--seeds", "1", "--device", "cpu", "--cache", str(tmp_path / "frames")]
    told = CliRunner().invoke(app, ["bench", "merging", write(), *options, "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert (out / "table.md").read_text().split("\n\n", 1)[1].strip() in told.output
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
        (one["way"]["queries"], one["way"]["rule"]): one["recall"]
        for one in result["measures"]
        if one["way"]["frames"] == "mean" and not one["way"]["router"]
    }
    for mode in ("latest", "pinned"):
        assert found[mode, "cosine"] == pytest.approx(row["pooled"][mode]["global_raw"])
        assert found[mode, SERVED] == pytest.approx(row["pooled"][mode]["global"])


def test_settings_of_the_measurement_are_refused(write: Callable[..., str], tmp_path: Path) -> None:
    told = CliRunner().invoke(
        app,
        ["bench", "merging", write(), "--method", "zero_shot@prior=0", "--cache", str(tmp_path / "frames")],
    )
    assert told.exit_code == 1
    assert "leave them out" in told.output


def test_ranks_follow_the_tie_rule(meeting: Meeting) -> None:
    scores = np.round(meeting.cosines, 1)
    expected = rank_by_id(scores, range(len(meeting.columns)), meeting.truth)
    np.testing.assert_array_equal(meeting.ranks(scores), expected)
    assert (meeting.ranks(scores) % 1 == 0.5).any(), "some are to be tied"
