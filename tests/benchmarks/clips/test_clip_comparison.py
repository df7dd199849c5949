"""Methods and ridge rivals on real video files, selections of captions, and intervals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clips.caption_tfidf import CaptionTfidf, caption_words
from benchmarks.clips.clip_comparison import compare_on_clips, keep_captions
from benchmarks.clips.clip_runs import GALLERIES, difference_interval
from benchmarks.clips.ridge_rival import DomainFeatures, Ridge, RidgeSettings, run_ridge, select_settings
from benchmarks.data.clip_folders import read_clip_domains
from benchmarks.learning.protocol import parse_variant
from trainer.task_data import Clip, TaskData

VARIANTS = ("zero_shot", "finetune@epochs=1", "joint@epochs=1")


@pytest.mark.endurance  # learns both domains six times; `make test-slow` learns a protocol
def test_methods_and_rivals_on_clips(clip_folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    *_, (methods, rivals) = compare_on_clips(
        read_clip_domains(clip_folder),
        [parse_variant(name) for name in VARIANTS],
        backbone="tiny",
        seeds=2,
        cache=tmp_path / "frames",
        report=lines.append,
    )
    assert [(run.label, run.seed) for run in methods] == [
        ("zero_shot", 0),
        *((name, seed) for seed in range(2) for name in VARIANTS[1:]),
    ]
    assert [run.label for run in rivals] == [
        f"{name}, routed {evidence}"
        for evidence in ("by words", "as zero_shot")
        for name in ("ridge per domain", "ridge over all domains")
    ]
    for run in [*methods, *rivals]:
        assert {name: len(ranks) for name, ranks in run.ranks["local"].items()} == {"disks": 3, "stripes": 3}
        assert run.clips == {"disks": 9, "stripes": 9}
        for gallery in GALLERIES:
            largest = {"local": 3, "local_all": 9}.get(gallery, 6)
            assert all(1 <= rank <= largest for ranks in run.ranks[gallery].values() for rank in ranks)
    assert "finetune@epochs=1, seed 0: domain 2 of 2 (stripes)" in " ".join(lines)
    zero_shot, finetune, joint, *_ = methods
    assert zero_shot.forgetting("local") == 0, "nothing changes between the domains"
    assert finetune.forgetting("global") is not None
    assert joint.forgetting("local") is None, "joint training has no release between the domains"
    assert joint.seconds_per_100_clips == pytest.approx(joint.seconds_per_domain * 2 * 100 / 18)
    assert finetune.peak == max(map(max, finetune.peak_mib.values())) > 0
    assert rivals[0].peak is None


def _task(count: int) -> TaskData:
    train = [Clip(f"v{number}", number, Path("f.npy"), ("a car",), "train") for number in range(count)]
    return TaskData("tsk", "cars", (*train, Clip("held", count, Path("f.npy"), ("a red car",), "test")))


def _captioned(task: TaskData) -> set[str]:
    return {clip.id for clip in task.train if clip.captions}


def test_smaller_selections_are_part_of_larger_ones() -> None:
    task = _task(20)
    selections = [_captioned(keep_captions(task, limit, seed=3)) for limit in (2, 5, 9)]
    assert [len(selection) for selection in selections] == [2, 5, 9]
    assert selections[0] < selections[1] < selections[2]
    assert _captioned(keep_captions(task, 5, seed=4)) != selections[1]
    limited = keep_captions(task, 1, seed=0)
    assert [clip.id for clip in limited.clips] == [clip.id for clip in task.clips]
    assert limited.test == task.test, "held-out captions stay"
    assert keep_captions(task, 20, seed=0) == task


def test_equal_differences_have_no_spread_and_domains_or_queries_equal_weights() -> None:
    assert difference_interval([[3.0, 5.0], [1.0]], [[1.0, 3.0], [-1.0]]) == pytest.approx((2, 2, 2))
    first, second = [[4.0, 4.0, 4.0], [0.0]], [[0.0, 0.0, 0.0], [0.0]]
    assert difference_interval(first, second) == pytest.approx((2, 2, 2))
    assert difference_interval(first, second, pooled=True) == pytest.approx((3, 3, 3))


def test_interval_contains_the_difference_and_repeats() -> None:
    first, second = [[100.0, 0.0, 100.0, 100.0, 0.0]], [[0.0, 0.0, 100.0, 0.0, 100.0]]
    difference, low, high = difference_interval(first, second)
    assert difference == pytest.approx(20)
    assert low < 20 < high
    # Of five queries +100, 0, 0, +100, -100, the mean of a resample is between -100 and 100 in steps of 20.
    assert low == pytest.approx(-40, abs=21)
    assert high == pytest.approx(80, abs=21)
    assert difference_interval(first, second) == (difference, low, high)


SETTINGS = RidgeSettings(penalty=2000, recentered=True)


def test_dual_and_primal_forms_agree() -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(5, 7)), rng.normal(size=(5, 3))
    dual = Ridge(features, targets, penalty=3)
    scaled = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-6)
    primal = np.linalg.solve(scaled.T @ scaled + 3 * np.eye(7), scaled.T @ (targets - targets.mean(axis=0)))
    np.testing.assert_allclose(dual.weights, primal)


@pytest.fixture
def domains() -> list[DomainFeatures]:
    """Two domains whose features name their captions; both share the word "clip"."""

    def domain(name: str, words: tuple[str, ...], offset: int) -> DomainFeatures:
        features = np.zeros((2 * len(words), 8))
        for row in range(len(features)):
            features[row, offset + row % len(words)] = 1
        captions = tuple((f"clip {word}",) for word in [*words, *words])
        return DomainFeatures(name, features, captions, np.arange(len(features)) >= len(words), seconds=1.0)

    return [domain("animals", ("cat", "dog", "cow"), 0), domain("cars", ("bus", "van", "cab"), 4)]


@pytest.mark.parametrize("joint", [False, True])
def test_separable_domains_are_found(domains: list[DomainFeatures], joint: bool) -> None:
    run = run_ridge(domains, SETTINGS, joint=joint, prior=0.04, label="ridge")
    assert run.order == ("animals", "cars")
    for gallery in ("local", "global", "global_raw"):
        assert run.recall(gallery, 1) == 100, gallery
        assert run.query_recall(gallery, 1) == 100, gallery
    assert run.recall("local_all", 1) == 0, "each held-out clip ties with the training clip of its word"
    assert run.recall("local_all", 5) == 100
    assert run.routing() == 100
    assert run.seconds["indexing"] == [1.0, 1.0]
    assert run.forgetting("local") is None


def test_clips_without_captions_are_neither_fitted_nor_queried() -> None:
    captions = (("cat",), ("dog",), (), ("cat",), ())
    features = np.array([[0.0], [1.0], [9.0], [0.0], [1.0]])
    domain = DomainFeatures("animals", features, captions, np.array([False, False, False, True, True]))
    assert domain.training.tolist() == [True, True, False, False, False]
    assert domain.queries == ["cat"]
    run = run_ridge([domain], SETTINGS, joint=False, prior=0.04, label="ridge")
    assert run.ranks["local"] == {"animals": [1.0]}
    assert run.clips == {"animals": 5}


@pytest.mark.parametrize("joint", [False, True])
def test_evidence_of_a_method_replaces_that_of_the_words(domains: list[DomainFeatures], joint: bool) -> None:
    words = run_ridge(domains, SETTINGS, joint=joint, prior=0.04, label="ridge")
    cars_first = [[0.0, -1000.0]] * 3  # columns in the order of learning: cars, animals
    method = replace(
        words, seed=2, order=("cars", "animals"), evidence={"animals": cars_first, "cars": cars_first}
    )
    run = run_ridge(domains, SETTINGS, joint=joint, prior=0.04, label="ridge", routing=method)
    assert run.seed == 2
    assert run.routed == {"animals": [False] * 3, "cars": [True] * 3}
    assert run.recall("global", 1) == 50
    assert run.ranks["global"]["animals"] == [4, 4, 4], "after the three clips of the other domain"
    assert run.ranks["global_raw"] == words.ranks["global_raw"]


def test_center_is_that_of_the_gallery_or_of_the_fitted_clips() -> None:
    features = np.array([[0.0], [1.0], [0.9], [0.8]])
    domain = DomainFeatures(
        "animals", features, (("cat",), ("dog",), ("dog",), ("cat",)), np.arange(4) >= 2, seconds=0.0
    )
    ranks = {
        recentered: run_ridge(
            [domain], RidgeSettings(1, recentered), joint=False, prior=0.04, label="ridge"
        ).ranks["local"]["animals"]
        for recentered in (False, True)
    }
    assert ranks[True] == [1, 1], "each clip on its side of the mean of the gallery"
    assert ranks[False] == [1.5, 1.5], "both clips are on the side of the dog"


def _noisy_domains() -> list[DomainFeatures]:
    """Captions depend on one feature out of thirty-three; the others are noise that a small penalty fits."""
    rng = np.random.default_rng(0)
    domains = []
    for name in ("animals", "cars"):
        features = np.zeros((40, 33))
        features[:, 0] = np.arange(40) % 2 * 4
        features[:, 1:] = rng.normal(size=(40, 32))
        captions = tuple((f"{name} {'low' if row % 2 else 'high'} {row // 2 % 4}",) for row in range(40))
        domains.append(DomainFeatures(name, features, captions, np.arange(40) >= 30))
    return domains


@pytest.mark.parametrize("joint", [False, True])
def test_selection_reads_no_held_out_clip(joint: bool) -> None:
    domains = _noisy_domains()
    expected = select_settings(domains, joint=joint, prior=0.04)
    changed = [
        replace(
            part,
            features=np.where(part.held_out[:, None], np.nan, part.features),
            captions=tuple(
                ("other",) if out else texts for texts, out in zip(part.captions, part.held_out, strict=True)
            ),
        )
        for part in domains
    ]
    assert select_settings(changed, joint=joint, prior=0.04) == expected


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    assert caption_words("A 3/4 sit-up, twice") == ["a", "3", "4", "sit", "up", "twice"]
    assert caption_words("烤蛋挞 x2") == ["烤", "蛋", "挞", "x2"]


def test_weights_follow_the_definition() -> None:
    tfidf = CaptionTfidf(["run fast", "run slow slow"])
    assert tfidf.words == ["fast", "run", "slow"]
    rare = math.log(3 / 2) + 1  # in one of two documents
    np.testing.assert_allclose(tfidf.idf, [rare, 1, rare])
    slow = (1 + math.log(2)) * rare
    np.testing.assert_allclose(
        tfidf.transform(["run fast", "run slow slow"]),
        [
            [rare / math.hypot(rare, 1), 1 / math.hypot(rare, 1), 0],
            [0, 1 / math.hypot(slow, 1), slow / math.hypot(slow, 1)],
        ],
    )


def test_unknown_words_are_ignored() -> None:
    tfidf = CaptionTfidf(["run fast", "run slow"])
    np.testing.assert_array_equal(tfidf.transform(["jump", ""]), np.zeros((2, 3)))
    np.testing.assert_allclose(tfidf.transform(["run and jump"]), [[0, 1, 0]])
