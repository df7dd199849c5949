"""A row of the recall matrix on vectors small enough to rank by hand, and against a slow reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from models.routing.router import log_weights
from tests.word_routing import WordRouting
from trainer.errors import EvaluationError
from trainer.evaluation import mode_evaluation
from trainer.evaluation.gallery import Gallery, Query
from trainer.evaluation.mode_evaluation import QueryMemory
from trainer.evaluation.rank_ledger import GALLERIES
from trainer.evaluation.recall_row import (
    MAX_MEASURED_TASKS,
    compute_recall,
    evaluate_row,
    routing_accuracy,
    select_measured_tasks,
)
from trainer.evaluation.retrieval_metrics import summarize
from trainer.video_embedding import MemoryShard


class Encoder(WordRouting):
    """An encoder that looks texts up: ``tables[mode][text]`` is ``[T, dim]``."""

    modes = ("latest", "pinned")

    def __init__(self, tasks: Sequence[str], tables: dict[str, dict[str, np.ndarray]]) -> None:
        self._tasks = list(tasks)
        self._tables = tables
        self.widest = 0

    def token_presence(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._tables["latest"][text][0] for text in texts]).astype(np.float32)

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> np.ndarray:
        self.widest = max(self.widest, len(texts) * len(tasks))
        rows = [self._tasks.index(task) for task in tasks]
        return np.stack([self._tables[mode][text][rows] for text in texts]).astype(np.float32)


def _shard(ids: Sequence[int], vectors: np.ndarray) -> MemoryShard:
    return MemoryShard(np.array(ids, np.int64), vectors.astype(np.float32))


def _unit(*degrees: float) -> np.ndarray:
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def test_row_equals_figures_computed_by_hand() -> None:
    """Vectors are angles; a video ranks the higher, the nearer its angle is to that of the query."""
    day = Gallery(
        "day",
        _shard([10, 11, 12], _unit(0, 20, 5)),
        held_out=np.array([10, 11]),  # 12 is a close training video
        queries=(Query("sun", 10), Query("noon", 11)),
    )
    night = Gallery(
        "night",
        _shard([21, 20], _unit(3, 90)),
        held_out=np.array([20, 21]),
        queries=(Query("moon", 20),),
    )
    table = {
        # the same text points elsewhere for each shard
        "sun": _unit(4, 0),  # day: 12 (1°), 10 (4°), 11 (16°); night: 21 (3°), 20 (90°)
        "noon": _unit(19, 60),  # day: 11 (1°), 12, 10; night: 20 (30°), 21 (57°)
        "moon": _unit(10, 45),  # day: 12 (5°), 10 and 11 (10°); night: 21 (42°), 20 (45°)
    }
    encoder = Encoder(["day", "night"], {"latest": table, "pinned": table})
    row = evaluate_row(encoder, [day, night], _unit(10, 80), prior=0, modes=["latest"])
    assert set(row.recalls) == {"latest"}
    ranks = {
        name: {task: (r.meanr, r.r1, r.queries) for task, r in row.recalls["latest"][name].items() if r}
        for name in GALLERIES
    }
    assert ranks["local"] == {"day": (1, 1, 2), "night": (2, 0, 1)}
    assert ranks["local_all"] == {"day": (1.5, 0.5, 2), "night": (2, 0, 1)}  # sun: 12 comes before 10
    assert ranks["global"] == {"day": (1.5, 0.5, 2), "night": (4, 0, 1)}  # sun: 21; moon: 10, 11 and 21
    assert ranks["global_all"] == {"day": (2, 0.5, 2), "night": (5, 0, 1)}
    # "sun" at 4°, "noon" at 19° and "moon" at 10° have the largest evidence for the profile at 10°
    assert row.routing == {"day": 1, "night": 0}
    assert row.routing_at == {"day": {1: 1, 2: 1, 4: 1}, "night": {1: 0, 2: 1, 4: 1}}
    assert row.first_hits["latest"]["global"] == {"day": b"\x40", "night": b"\x00"}  # noon
    assert row.query_sets["day"] != row.query_sets["night"]
    assert row.pooled["latest"]["global"] == summarize(np.array([2, 1, 4]))
    # Video 10 (0°): sun 4°, noon 19°, moon 10° for its shard. Video 11 (20°): noon 1°, moon 10°, sun 16°.
    # Video 20 (90°): noon 30°, moon 45°, sun 90°.
    to_text = {
        scope: {task: r.meanr for task, r in found.items() if r}
        for scope, found in row.to_text["latest"].items()
    }
    assert to_text == {"local": {"day": 1, "night": 1}, "global": {"day": 1, "night": 2}}
    assert row.mean_ap["latest"] == {scope: {"day": None, "night": None} for scope in ("local", "global")}
    assert row.hubness["latest"] is None  # four videos, so each is among the ten nearest of every query
    assert row.drift == {}


def _random(
    tasks: int, seed: int, queries: int = 9
) -> tuple[Encoder, list[Gallery], dict[str, dict[str, np.ndarray]]]:
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> np.ndarray:
        vectors = rng.normal(size=shape)
        return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)

    galleries: list[Gallery] = []
    tables: dict[str, dict[str, np.ndarray]] = {"latest": {}, "pinned": {}}
    free = rng.permutation(1000)
    for task in range(tasks):
        ids, free = free[:15], free[15:]
        held_out = rng.permutation(ids)[:8]
        task_queries = [
            Query(f"task {task} query {number}", int(held_out[number % 8])) for number in range(queries)
        ]
        labels = {int(video): "abc"[int(video) % 3] for video in ids if video % 7}  # the others have no class
        for table in tables.values():
            table.update({query.text: unit(tasks, 4) for query in task_queries})
        galleries.append(
            Gallery(str(task), _shard(ids.tolist(), unit(15, 4)), held_out, tuple(task_queries), labels)
        )
    return Encoder([g.task for g in galleries], tables), galleries, tables


@pytest.mark.parametrize("budget", [1, 7, 2048])
def test_text_to_video_recall_equals_a_slow_reference(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    monkeypatch.setattr(mode_evaluation, "MAX_QUERY_VECTORS", budget)
    encoder, galleries, tables = _random(tasks=3, seed=1)
    row = evaluate_row(encoder, galleries, np.eye(3, 4, dtype=np.float32), prior=0)
    assert encoder.widest <= max(budget, 2)
    for mode, table in tables.items():
        for own in galleries:
            ranks: dict[str, list[int]] = {name: [] for name in GALLERIES}
            for query in own.queries:
                scored = [
                    (float(table[query.text][t] @ gallery.shard.vectors(np.array([video]))[0]), t, int(video))
                    for t, gallery in enumerate(galleries)
                    for video in gallery.shard.ids
                ]
                scored.sort(reverse=True)
                for name in GALLERIES:
                    kept = [
                        video
                        for _, t, video in scored
                        if (name.startswith("global") or galleries[t] is own)
                        and (name.endswith("all") or video in galleries[t].held_out)
                    ]
                    ranks[name].append(1 + kept.index(query.vector_id))
            for name in GALLERIES:
                recall = row.recalls[mode][name][own.task]
                assert recall is not None
                assert recall.meanr == pytest.approx(np.mean(ranks[name]))
                assert recall.medr == np.median(ranks[name])
                assert recall.r1 == pytest.approx(np.mean([r <= 1 for r in ranks[name]]))
                assert recall.r5 == pytest.approx(np.mean([r <= 5 for r in ranks[name]]))
                assert recall.r10 == pytest.approx(np.mean([r <= 10 for r in ranks[name]]))


def _cosines(
    galleries: Sequence[Gallery], table: dict[str, np.ndarray], wanted: Sequence[int]
) -> dict[tuple[str, int], float]:
    """Score each query text with each held-out video of the given tasks."""
    return {
        (query.text, int(video)): float(
            table[query.text][t] @ galleries[t].shard.vectors(np.array([video]))[0]
        )
        for gallery in galleries
        for query in gallery.queries
        for t in wanted
        for video in galleries[t].held_out
    }


@pytest.mark.parametrize("budget", [1, 2048])
def test_video_to_text_recall_equals_a_slow_reference(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    monkeypatch.setattr(mode_evaluation, "MAX_QUERY_VECTORS", budget)
    encoder, galleries, tables = _random(tasks=3, seed=3, queries=11)  # three videos have two captions
    row = evaluate_row(encoder, galleries, np.eye(3, 4, dtype=np.float32), prior=0)
    for mode, table in tables.items():
        scores = _cosines(galleries, table, range(3))
        for own in galleries:
            for scope in ("local", "global"):
                texts = [q.text for g in galleries if scope == "global" or g is own for q in g.queries]
                ranks = []
                for video in {query.vector_id for query in own.queries}:
                    right = {query.text for query in own.queries if query.vector_id == video}
                    best = max(scores[text, video] for text in right)
                    ranks.append(1 + sum(scores[text, video] > best for text in texts if text not in right))
                assert row.to_text[mode][scope][own.task] == summarize(np.array(ranks))


def test_precision_and_hubness_equal_a_slow_reference() -> None:
    encoder, galleries, tables = _random(tasks=3, seed=4)
    row = evaluate_row(encoder, galleries, np.eye(3, 4, dtype=np.float32), prior=0)
    classes = {video: label for gallery in galleries for video, label in (gallery.labels or {}).items()}
    for mode, table in tables.items():
        scores = _cosines(galleries, table, range(3))
        nearest: dict[int, int] = {int(video): 0 for gallery in galleries for video in gallery.held_out}
        for own in galleries:
            for scope in ("local", "global"):
                videos = [int(v) for g in galleries if scope == "global" or g is own for v in g.held_out]
                found: dict[int, list[float]] = {1: [], 5: [], 10: []}
                for query in own.queries:
                    ranked = sorted(videos, key=lambda video, text=query.text: -scores[text, video])
                    if scope == "global":
                        for video in ranked[:10]:
                            nearest[video] += 1
                    if query.vector_id not in classes:
                        continue
                    hits = [classes.get(video) == classes[query.vector_id] for video in ranked]
                    for k, values in found.items():
                        precisions = [
                            sum(hits[: i + 1]) / (i + 1) for i in range(k) if hits[i : i + 1] == [True]
                        ]
                        values.append(sum(precisions) / min(k, sum(hits)))
                expected = {k: pytest.approx(np.mean(values)) for k, values in found.items()}
                assert row.mean_ap[mode][scope][own.task] == expected
        occurrences = np.array(list(nearest.values()), float)
        over = occurrences - occurrences.mean()
        assert row.hubness[mode] == pytest.approx(np.mean(over**3) / np.mean(over**2) ** 1.5)


def test_drift_compares_with_the_remembered_queries() -> None:
    day = Gallery("day", _shard([1, 2], _unit(0, 90)), np.array([1, 2]), (Query("sun", 1), Query("noon", 2)))
    night = Gallery("night", _shard([3], _unit(45)), np.array([3]), (Query("moon", 3),))
    profiles = np.eye(2, dtype=np.float32)
    memory: QueryMemory = {}

    def drift(tables: dict[str, dict[str, np.ndarray]], galleries: list[Gallery]) -> object:
        encoder = Encoder(["day", "night"], tables)
        return evaluate_row(encoder, galleries, profiles[: len(galleries)], memory=memory).drift

    first = {"sun": _unit(0, 0), "noon": _unit(90, 0)}
    assert drift({"latest": first, "pinned": first}, [day]) == {"latest": {}, "pinned": {}}
    moved = {"sun": _unit(10, 0), "noon": _unit(60, 0), "moon": _unit(0, 45)}
    second = drift({"latest": moved, "pinned": {**first, "moon": _unit(0, 45)}}, [day, night])
    assert second == {"latest": {"day": pytest.approx(20, abs=1e-4)}, "pinned": {"day": 0}}
    back = {**moved, **first}  # drift since the task was learned, not since the row before
    third = drift({"latest": back, "pinned": back}, [day, night])
    assert third == {"latest": {"day": 0, "night": 0}, "pinned": {"day": 0, "night": 0}}


def test_pinned_figures_of_a_task_do_not_change_with_more_tasks() -> None:
    """Pinned queries of a known task are scored against the same vectors in every row, so all bits are equal."""
    encoder, galleries, _ = _random(tasks=3, seed=5)
    profiles = np.eye(3, 4, dtype=np.float32)
    rows = [evaluate_row(encoder, galleries[:n], profiles[:n]) for n in (1, 2, 3)]
    assert rows[0].recalls["pinned"]["local"]["0"] == rows[2].recalls["pinned"]["local"]["0"]
    assert rows[0].to_text["pinned"]["local"]["0"] == rows[2].to_text["pinned"]["local"]["0"]
    assert rows[1].recalls["pinned"]["global"] != rows[2].recalls["pinned"]["global"]


def test_task_without_queries_is_in_the_gallery_but_has_no_figures() -> None:
    encoder, galleries, _ = _random(tasks=2, seed=2)
    mute = Gallery("0", galleries[0].shard, np.array([], np.int64), ())
    shares: list[float] = []
    row = evaluate_row(
        encoder, [mute, galleries[1]], np.eye(2, 4, dtype=np.float32), report=shares.append, prior=0
    )
    assert row.recalls["latest"]["local"]["0"] is None
    assert row.routing["0"] is row.routing_at["0"] is row.to_text["latest"]["local"]["0"] is None
    assert row.mean_ap["latest"]["global"]["0"] is None
    assert row.pooled["latest"]["global"] == row.recalls["latest"]["global"]["1"]
    found = row.recalls["latest"]
    assert found["global"]["1"] == found["local"]["1"]  # nothing of the first task is held out
    assert found["global_all"]["1"].meanr > found["local_all"]["1"].meanr  # type: ignore[union-attr]
    assert shares[-1] == 1
    assert evaluate_row(encoder, [mute], np.eye(1, 4, dtype=np.float32), prior=0).recalls["pinned"][
        "global"
    ] == {"0": None}


def test_union_adds_the_log_weights_of_the_router() -> None:
    """Reference: each video's cosine with its shard's query plus the log weight of its task."""
    rng = np.random.default_rng(6)
    encoder, galleries, tables = _random(tasks=4, seed=6)
    words = {text: rng.integers(0, 2, 30).astype(np.float32) for text in tables["latest"]}
    encoder.token_presence = lambda texts: np.stack([words[text] for text in texts])  # type: ignore[method-assign]
    profiles = (5 * rng.random((4, 30))).astype(np.float32)
    profiles[2] = 0  # without captions
    row = evaluate_row(encoder, galleries, profiles, prior=0.1, modes=["latest"])
    for own in galleries:
        ranks = []
        for query in own.queries:
            weights = log_weights(words[query.text][None], profiles)[0]
            scores = {
                int(video): float(
                    tables["latest"][query.text][t] @ gallery.shard.vectors(np.array([video]))[0]
                )
                + 0.1 * float(weights[t])
                for t, gallery in enumerate(galleries)
                for video in gallery.held_out
            }
            ranks.append(
                sorted(scores, key=lambda video, scores=scores: -scores[video]).index(query.vector_id) + 1
            )
        assert row.recalls["latest"]["global"][own.task] == summarize(np.array(ranks))


def test_query_of_a_training_video_is_refused() -> None:
    with pytest.raises(EvaluationError, match="task day: a query belongs to video 3, which is not held out"):
        Gallery("day", _shard([3, 4], _unit(1, 2)), np.array([4]), (Query("x", 3),))


def test_tied_task_counts_as_a_routing_miss() -> None:
    weights = np.log(np.array([[0.4, 0.4, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]))
    assert routing_accuracy(weights, 0) == pytest.approx(1 / 3)
    assert routing_accuracy(weights, 0, 2) == pytest.approx(2 / 3)
    assert routing_accuracy(weights, 0, 3) == 1


def test_domain_without_captions_does_not_change_the_router_accuracy() -> None:
    """It has the evidence of the likeliest other domain, so every query would tie with it."""
    encoder, galleries, _ = _random(tasks=3, seed=4)
    profiles = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    silent = Gallery("2", galleries[2].shard, np.array([], np.int64), ())
    profiles[2] = 0
    alone = evaluate_row(encoder, galleries[:2], profiles[:2])
    together = evaluate_row(encoder, [*galleries[:2], silent], profiles)
    assert together.routing_at == {**alone.routing_at, "2": None}
    assert max(value or 0 for value in together.routing.values()) > 0


def test_domain_whose_training_videos_have_no_captions_is_never_routed_first() -> None:
    encoder, galleries, _ = _random(tasks=2, seed=4)
    profiles = np.eye(2, 4, dtype=np.float32)
    profiles[1] = 0
    assert evaluate_row(encoder, galleries, profiles).routing["1"] == 0


def test_caption_weight_is_normalized_over_the_tasks_at_its_time() -> None:
    """Later tasks do not change the order of the earlier captions."""
    rng = np.random.default_rng(7)
    encoder, galleries, tables = _random(tasks=4, seed=7, queries=11)
    words = {text: rng.integers(0, 2, 30).astype(np.float32) for text in tables["latest"]}
    encoder.token_presence = lambda texts: np.stack([words[text] for text in texts])  # type: ignore[method-assign]
    profiles = (5 * rng.random((4, 30))).astype(np.float32)
    row = evaluate_row(encoder, galleries, profiles, prior=0.1, modes=["latest"])
    evidence = {text: presence @ profiles.T for text, presence in words.items()}
    cosines = _cosines(galleries, tables["latest"], range(4))
    task_of = {int(video): t for t, gallery in enumerate(galleries) for video in gallery.shard.ids}
    scores = {}
    for came, gallery in enumerate(galleries):
        for query in gallery.queries:
            known = np.log(np.exp(evidence[query.text][: came + 1]).sum())
            for (text, video), cosine in cosines.items():
                if text == query.text:
                    scores[text, video] = cosine + 0.1 * (evidence[text][task_of[video]] - known)
    for own in galleries:
        ranks = []
        for video in {query.vector_id for query in own.queries}:
            right = {query.text for query in own.queries if query.vector_id == video}
            best = max(scores[text, video] for text in right)
            ranks.append(1 + sum(scores[text, video] > best for text in words if text not in right))
        assert row.to_text["latest"]["global"][own.task] == summarize(np.array(ranks))


def test_compute_recall_ranks_by_id() -> None:
    recall = compute_recall(_unit(0, 10).astype(np.float32), [5, 5], _unit(2, 9).astype(np.float32), [5, 6])
    assert recall is not None
    assert (recall.r1, recall.meanr) == (0.5, 1.5)
    assert compute_recall(np.empty((0, 2), np.float32), [], _unit(2).astype(np.float32), [5]) is None


def test_raw_and_local_galleries_ignore_routing() -> None:
    encoder, galleries, _ = _random(tasks=3, seed=4)
    profiles = np.eye(3, 4, dtype=np.float32)
    plain, lifted = (evaluate_row(encoder, galleries, profiles, prior=prior) for prior in (0, 0.5))
    before, after = (row.recalls["pinned"] for row in (plain, lifted))
    assert after["global_raw"] == before["global_raw"] == before["global"] != after["global"]
    assert after["local"] == before["local"]
    assert lifted.to_text["pinned"]["local"] == plain.to_text["pinned"]["local"]


NAMES = [f"task {t}" for t in range(3 * MAX_MEASURED_TASKS)]


def test_small_library_is_measured_completely() -> None:
    for count in (0, 1, MAX_MEASURED_TASKS):
        assert select_measured_tasks(NAMES[:count]) == set(NAMES[:count])


def test_large_library_is_measured_at_even_distances_with_its_newest_task() -> None:
    tasks = NAMES[: MAX_MEASURED_TASKS + 2]
    assert select_measured_tasks(tasks) == {*tasks[::2], tasks[-1]}
    assert select_measured_tasks(NAMES) == {*NAMES[::4], NAMES[-1]}


def test_growing_library_measures_a_bounded_number_of_tasks_and_none_again() -> None:
    ended: set[str] = set()
    before: frozenset[str] = frozenset()
    for count in range(1, len(NAMES) + 1):
        measured = select_measured_tasks(NAMES[:count])
        ended |= before - measured
        assert NAMES[count - 1] in measured
        assert MAX_MEASURED_TASKS / 2 <= len(measured) <= MAX_MEASURED_TASKS + 1 or count < MAX_MEASURED_TASKS
        assert not ended & measured
        before = measured
