"""A row of the recall matrix on vectors small enough to rank by hand, and against a slow reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import Vectors
from models.routing.router import COSINE_LIMIT, log_weights
from models.routing.routing_profiles import RoutingProfiles
from tests.word_routing import WordRouting
from trainer.evaluation import recall_row
from trainer.evaluation.gallery import Gallery, Query
from trainer.evaluation.recall_row import (
    MAX_MEASURED_TASKS,
    Ranks,
    RecallRow,
    build_evaluation_tasks,
    evaluate_row,
    rank_queries,
    select_measured_tasks,
)
from trainer.video_embedding import MemoryShard

from_dense = RoutingProfiles.from_dense

GALLERIES = ("local", "global", "local_all", "global_all", "global_raw")


class Encoder(WordRouting):
    """An encoder that looks texts up: ``table[text]`` is ``[T, dim]``; counts the encoded vectors."""

    modes = ("latest", "pinned")

    def __init__(self, tasks: Sequence[str], table: dict[str, Vectors]) -> None:
        self._tasks, self.table = list(tasks), table
        self.words = {text: vectors[0] for text, vectors in table.items()}
        self.widest = self.encoded = 0

    def piece_presence(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self.words[text] for text in texts]).astype(np.float32)

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Vectors:
        assert mode == "pinned"
        self.widest = max(self.widest, len(texts) * len(tasks))
        self.encoded += len(texts) * len(tasks)
        rows = [self._tasks.index(task) for task in tasks]
        return np.stack([self.table[text][rows] for text in texts]).astype(np.float32)


def _shard(ids: Sequence[int], vectors: np.ndarray) -> MemoryShard:
    return MemoryShard(np.array(ids, np.int64), vectors.astype(np.float32))


def _unit(*degrees: float) -> np.ndarray:
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def _mean_ranks(row: RecallRow, gallery: str) -> dict[str, float]:
    return {task: figures.recalls[gallery].meanr for task, figures in row.tasks.items()}  # type: ignore[index]


def test_row_equals_figures_computed_by_hand() -> None:
    """Vectors are angles; a video ranks the higher, the nearer its angle is to that of the query."""
    day = Gallery(
        "day",
        _shard([10, 11, 12], _unit(0, 20, 5)),
        held_out=np.array([10, 11]),  # 12 is a close training video
        queries=(Query("sun", 10), Query("noon", 11)),
    )
    night = Gallery(
        "night", _shard([21, 20], _unit(3, 90)), held_out=np.array([20, 21]), queries=(Query("moon", 20),)
    )
    table = {
        # the same text points elsewhere for each shard
        "sun": _unit(4, 0),  # day: 12 (1°), 10 (4°), 11 (16°); night: 21 (3°), 20 (90°)
        "noon": _unit(19, 60),  # day: 11 (1°), 12, 10; night: 20 (30°), 21 (57°)
        "moon": _unit(10, 45),  # day: 12 (5°), 10 and 11 (10°); night: 21 (42°), 20 (45°)
    }
    shares: list[float] = []
    row = evaluate_row(
        Encoder(["day", "night"], table),
        [day, night],
        from_dense(np.array([[1, 0.5], [0.5, 0.5]])),
        prior=0,
        report=shares.append,
    )
    assert (row.mode, shares[-1]) == ("pinned", 1)
    ranks = {
        name: {task: (r.recalls[name].meanr, r.recalls[name].r1, r.recalls[name].queries)}  # type: ignore[index]
        for name in GALLERIES[:4]
        for task, r in row.tasks.items()
        if task == "day"
    }
    # sun: 12 comes before 10 among all videos, and 21 in the union
    assert ranks["local"] == {"day": (1, 1, 2)}
    assert ranks["local_all"] == ranks["global"] == {"day": (1.5, 0.5, 2)}
    assert ranks["global_all"] == {"day": (2, 0.5, 2)}
    # moon: 21 in its own shard; 10, 11 and 12 in the union
    assert [_mean_ranks(row, name)["night"] for name in GALLERIES[:4]] == [2, 4, 2, 5]
    # the words of all three texts have the largest evidence for the first profile
    assert {task: figures.routing for task, figures in row.tasks.items()} == {"day": 1, "night": 0}
    assert row.tasks["day"].first_hits["global"] == b"\x40"  # noon
    assert row.tasks["night"].first_hits["global"] == b"\x00"
    assert row.tasks["day"].query_set != row.tasks["night"].query_set


def _random(
    tasks: int,
    seed: int,
    queries: int = 9,
    *,
    grid: bool = False,
    apart: float | None = None,
    bare: Sequence[int] = (),
) -> tuple[Encoder, list[Gallery], Vectors]:
    """Build tasks of random vectors.

    Args:
        grid: Coordinates are −1, 0 and 1 alone, so that many cosines are equal, or exactly 1.
        apart: Log-odds by which every text sounds like its own task; None: random words.
        bare: Tasks without captions.
    """
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> Vectors:
        vectors = rng.integers(-1, 2, (*shape, 4)) if grid else rng.normal(size=(*shape, 4))
        vectors = np.where(vectors.any(axis=-1, keepdims=True), vectors, 1)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)

    galleries: list[Gallery] = []
    table: dict[str, Vectors] = {}
    free = rng.permutation(1000)
    for task in range(tasks):
        ids, free = free[:15], free[15:]
        held_out = rng.permutation(ids)[:8]
        texts = [f"task {task} query {number}" for number in range(queries)]
        captions = tuple(Query(text, int(held_out[number % 8])) for number, text in enumerate(texts))
        table |= {text: unit(tasks) for text in texts}
        galleries.append(Gallery(str(task), _shard(ids.tolist(), unit(15)), held_out, captions))
    encoder = Encoder([gallery.task for gallery in galleries], table)
    encoder.words = {text: rng.integers(0, 2, 12).astype(np.float32) for text in table}
    profiles = (12 * rng.random((tasks, 12))).astype(np.float32)
    if apart is not None:
        encoder.words = {text: np.eye(12)[int(text.split()[1])] for text in table}
        profiles = apart * np.eye(tasks, 12, dtype=np.float32)
    profiles[list(bare)] = 0
    return encoder, galleries, profiles


def _rank(
    encoder: Encoder, galleries: Sequence[Gallery], profiles: Vectors, prior: float, *, raw: bool = False
) -> list[Ranks]:
    return rank_queries(
        encoder, build_evaluation_tasks(encoder, galleries, from_dense(profiles)), prior, raw=raw
    )


@pytest.mark.parametrize("prior", [0, 0.1])
@pytest.mark.parametrize("budget", [1, 7, 2048])
def test_ranks_equal_a_slow_reference(monkeypatch: pytest.MonkeyPatch, budget: int, prior: float) -> None:
    """Each video's score is the cosine with its shard's query plus, in a union, the log weight of its task."""
    monkeypatch.setattr(recall_row, "MAX_QUERY_VECTORS", budget)
    monkeypatch.setattr(recall_row, "_BLOCK_VIDEOS", 4 * budget)  # one shard, or several
    encoder, galleries, profiles = _random(tasks=3, seed=1)
    profiles[2] = 0  # without captions
    computed = _rank(encoder, galleries, profiles, prior, raw=True)
    assert encoder.widest <= max(budget, 2)
    for gallery_of, ranks in zip(galleries, computed, strict=True):
        expected: dict[str, list[int]] = {name: [] for name in GALLERIES}
        for query in gallery_of.queries:
            weights = log_weights(encoder.words[query.text][None].astype(np.float32), profiles)[0]
            cosines = {
                (t, int(video)): float(
                    encoder.table[query.text][t] @ gallery.shard.vectors(np.array([video]))[0]
                )
                for t, gallery in enumerate(galleries)
                for video in gallery.shard.ids
            }
            for name in GALLERIES:
                bonus = prior if name in ("global", "global_all") else 0
                scores = {
                    video: cosine + bonus * weights[t]
                    for (t, video), cosine in cosines.items()
                    if (name.startswith("global") or galleries[t] is gallery_of)
                    and (name.endswith("all") or video in galleries[t].held_out)
                }
                expected[name].append(1 + sum(s > scores[query.vector_id] + 1e-6 for s in scores.values()))
        assert {name: each.tolist() for name, each in ranks.items()} == expected


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    tasks=st.integers(1, 4),
    queries=st.integers(0, 9),
    grid=st.booleans(),
    apart=st.sampled_from([None, None, 1, 26, 40, 300]),
    bare=st.lists(st.integers(0, 3), max_size=1),
    prior=st.sampled_from([0, 0.02, 0.04, 1.0]),
    budget=st.sampled_from([1, 5, 2048]),
)
def test_skipped_encodings_change_no_rank(
    seed: int,
    tasks: int,
    queries: int,
    grid: bool,
    apart: float | None,
    bare: list[int],
    prior: float,
    budget: int,
) -> None:
    library = _random(tasks, seed, queries, grid=grid, apart=apart, bare=[t for t in bare if t < tasks])
    with patch.object(recall_row, "MAX_QUERY_VECTORS", budget):
        _assert_same(_rank(*library, prior), _rank(*library, prior, raw=True))


def _assert_same(ranks: list[Ranks], complete: list[Ranks]) -> None:
    for some, every in zip(ranks, complete, strict=True):
        assert {name: each.tolist() for name, each in some.items()} == {
            name: each.tolist() for name, each in every.items() if name != "global_raw"
        }


@pytest.mark.parametrize("grid", [False, True])
def test_wrongly_skipped_shards_change_the_ranks(grid: bool) -> None:
    """Libraries in which some pairs of a query and a shard can be skipped and others cannot."""
    encoder, galleries, profiles = _random(4, 1, grid=grid)
    ranks = _rank(encoder, galleries, profiles, 0.04)
    encoded = encoder.encoded
    assert 9 * 4 < encoded < 9 * 4 * 4
    _assert_same(ranks, _rank(encoder, galleries, profiles, 0.04, raw=True))
    assert encoder.encoded - encoded == 9 * 4 * 4
    with patch.object(recall_row, "can_reach_score", lambda bounds, lowest: np.zeros(np.shape(bounds), bool)):
        wrong = _rank(encoder, galleries, profiles, 0.04)
    assert any((w["global"] != r["global"]).any() for w, r in zip(wrong, ranks, strict=True))
    assert all((w["local"] == r["local"]).all() for w, r in zip(wrong, ranks, strict=True))


@pytest.mark.parametrize(
    ("apart", "prior", "shared", "encodings"),
    [(80, 0.04, False, 1), (80, 0, False, 4), (0.5, 0.04, False, 4), (None, 0.02, True, 1)],
)
def test_query_is_encoded_only_for_shards_that_can_change_its_rank(
    apart: float | None, prior: float, shared: bool, encodings: int
) -> None:
    """Words separate the tasks, or do not, or all tasks have the same query vectors."""
    library = _random(4, 2, apart=apart)
    library[0].shared_modes = library[0].modes if shared else ()
    _rank(*library, prior)
    assert library[0].encoded == 9 * 4 * encodings


@pytest.mark.parametrize("margin", [-1e-4, 1e-4])
def test_shard_whose_videos_could_tie_is_scored(margin: float) -> None:
    """All cosines are 1, and the log-odds of each text for its own task are larger by 1."""
    vector = np.eye(1, 4, dtype=np.float32)
    encoder, _, profiles = _random(2, 4, queries=1, apart=1)
    encoder.table = {text: vector.repeat(2, axis=0) for text in encoder.table}
    galleries = [
        Gallery(str(t), _shard([t], vector), np.array([t]), (Query(f"task {t} query 0", t),)) for t in (0, 1)
    ]
    prior = COSINE_LIMIT - 1 + margin
    ranks = _rank(encoder, galleries, profiles, prior)
    assert encoder.encoded == (2 if margin > 0 else 4)
    _assert_same(ranks, _rank(encoder, galleries, profiles, prior, raw=True))
    # with equal cosines and no routing, the other video ties
    assert _rank(encoder, galleries, profiles, 0)[0]["global"].tolist() == [1.5]


def test_vectors_of_a_fold_replace_those_of_the_encoder() -> None:
    encoder, galleries, profiles = _random(tasks=1, seed=5)
    (gallery,) = galleries
    vectors = gallery.shard.vectors(np.array([query.vector_id for query in gallery.queries]))
    fold = replace(gallery, query_vectors=vectors)
    assert evaluate_row(encoder, [fold], from_dense(profiles)).tasks["0"].recalls["local"].r1 == 1
    assert not encoder.encoded


def test_figures_of_a_task_do_not_change_with_more_tasks() -> None:
    """Pinned queries of a known task are scored against the same vectors in every row, so all bits are equal."""
    encoder, galleries, profiles = _random(tasks=3, seed=5)
    rows = [evaluate_row(encoder, galleries[:n], from_dense(profiles[:n])) for n in (1, 2, 3)]
    assert rows[0].tasks["0"].recalls["local"] == rows[2].tasks["0"].recalls["local"]
    assert rows[1].tasks["0"].recalls["global"] != rows[2].tasks["0"].recalls["global"]


def test_task_without_queries_is_in_the_gallery_but_has_no_figures() -> None:
    encoder, galleries, profiles = _random(tasks=2, seed=2)
    mute = Gallery("0", galleries[0].shard, np.array([], np.int64), ())
    row = evaluate_row(encoder, [mute, galleries[1]], from_dense(profiles), prior=0)
    assert set(row.tasks) == {"1"}
    recalls = row.tasks["1"].recalls
    assert recalls["global"] == recalls["local"]  # nothing of the first task is held out
    assert recalls["global_all"].meanr > recalls["local_all"].meanr
    assert evaluate_row(encoder, [mute], from_dense(profiles[:1]), prior=0).tasks == {}


def test_domain_without_captions_does_not_change_the_router_accuracy() -> None:
    """It has the evidence of the likeliest other domain, so every query would tie with it."""
    encoder, galleries, profiles = _random(tasks=3, seed=4, bare=[2])
    uncaptioned = Gallery("2", galleries[2].shard, np.array([], np.int64), ())
    alone = evaluate_row(encoder, galleries[:2], from_dense(profiles[:2]))
    together = evaluate_row(encoder, [*galleries[:2], uncaptioned], from_dense(profiles))
    accuracies = {task: figures.routing for task, figures in together.tasks.items()}
    assert accuracies == {task: figures.routing for task, figures in alone.tasks.items()}
    assert max(accuracies.values()) > 0
    assert evaluate_row(encoder, galleries, from_dense(profiles)).tasks["2"].routing == 0, (
        "never routed first"
    )


NAMES = [f"task {t}" for t in range(3 * MAX_MEASURED_TASKS)]


def test_growing_library_measures_a_bounded_number_of_tasks_and_none_again() -> None:
    tasks = NAMES[: MAX_MEASURED_TASKS + 2]
    assert select_measured_tasks(tasks) == {*tasks[::2], tasks[-1]}
    ended: set[str] = set()
    before = select_measured_tasks([])
    assert not before
    for count in range(1, len(NAMES) + 1):
        measured = select_measured_tasks(NAMES[:count])
        ended |= before - measured
        assert NAMES[count - 1] in measured
        assert MAX_MEASURED_TASKS / 2 <= len(measured) <= MAX_MEASURED_TASKS + 1 or count < MAX_MEASURED_TASKS
        assert count > MAX_MEASURED_TASKS or measured == set(NAMES[:count])
        assert not ended & measured
        before = measured
