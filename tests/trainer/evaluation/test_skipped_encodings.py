"""Rows without comparison measures: the same figures as in a full row with far fewer encodings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import Vectors
from models.routing.router import COSINE_LIMIT
from tests.word_routing import WordRouting
from trainer.evaluation import mode_evaluation
from trainer.evaluation.gallery import Gallery, Query
from trainer.evaluation.mode_evaluation import QueryMemory
from trainer.evaluation.rank_ledger import RankLedger, read_ledger, write_ledger
from trainer.evaluation.recall_row import RecallRow, evaluate_row
from trainer.video_embedding import MemoryShard

WORDS = 12


class Library(WordRouting):
    """Tasks of random vectors, and an encoder that looks texts up by the number that they end with.

    Args:
        grid: vectors have coordinates of −1, 0 and 1 alone, so that many cosines are equal, or exactly 1.
        queries: of each task, over half as many videos; two thirds of those are held out.
        apart: nats by which every text sounds like its own task; 0: random words.
        silent: tasks without words of their own.
    """

    modes = ("latest", "pinned")

    def __init__(
        self,
        seed: int,
        *,
        tasks: int = 4,
        queries: int = 7,
        grid: bool = False,
        classes: bool = False,
        apart: float = 0.0,
        silent: Sequence[int] = (),
    ) -> None:
        rng = np.random.default_rng(seed)
        self.names = [f"task {t}" for t in range(tasks)]
        self.encoded = {mode: 0 for mode in self.modes}

        def unit(*shape: int) -> Vectors:
            vectors = rng.integers(-1, 2, (*shape, 3)) if grid else rng.normal(size=(*shape, 3))
            vectors = np.where(vectors.any(axis=-1, keepdims=True), vectors, 1)
            return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)

        self.table = unit(tasks * queries, tasks)
        self.presence = (rng.random((tasks * queries, WORDS)) < 0.4).astype(np.float32)
        self.profiles = (12 * rng.random((tasks, WORDS))).astype(np.float32)
        if apart:
            self.presence = np.eye(tasks, WORDS, dtype=np.float32).repeat(queries, axis=0)
            self.profiles = apart * np.eye(tasks, WORDS, dtype=np.float32)
        self.profiles[list(silent)] = 0
        self.galleries = []
        for task, name in enumerate(self.names):
            count = max(2, queries // 2)
            ids = 100 * task + rng.permutation(count + 2)
            held_out = rng.permutation(ids)[:count]
            task_queries = tuple(
                Query(f"{name} says {queries * task + n}", int(held_out[n % max(1, count - 1)]))
                for n in range(queries)
            )
            labels = {int(video): "ab"[int(video) % 2] for video in ids if video % 4} if classes else None
            self.galleries.append(
                Gallery(name, MemoryShard(ids, unit(len(ids))), held_out, task_queries, labels)
            )

    def token_presence(self, texts: Sequence[str]) -> Vectors:
        return self.presence[[int(text.split()[-1]) for text in texts]]

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Vectors:
        self.encoded[mode] += len(texts) * len(tasks)
        rows, columns = [int(text.split()[-1]) for text in texts], [self.names.index(task) for task in tasks]
        return self.table[rows][:, columns]

    def encoding_identity(self, task: str, mode: str) -> str | None:
        return task if mode == "pinned" else None

    def row(
        self,
        tasks: int,
        prior: float,
        *,
        full: bool,
        ledger: RankLedger | None = None,
        memory: QueryMemory | None = None,
    ) -> RecallRow:
        profiles = self.profiles[:tasks]
        return evaluate_row(
            self, self.galleries[:tasks], profiles, prior=prior, full=full, ledger=ledger, memory=memory
        )


def _lean(row: RecallRow) -> RecallRow:
    """Return the part of a full row that a lean row has."""
    for found in (row.recalls, row.first_hits, row.pooled):
        for galleries in found.values():
            del galleries["global_raw"]
    row.to_text, row.mean_ap, row.hubness = {}, {}, {}
    return row


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    tasks=st.integers(1, 4),
    queries=st.integers(0, 9),
    grid=st.booleans(),
    classes=st.booleans(),
    apart=st.sampled_from([0, 0, 1, 26, 40, 300]),
    silent=st.lists(st.integers(0, 3), max_size=1),
    prior=st.sampled_from([0, 0.02, 0.04, 1.0]),
    budget=st.sampled_from([1, 5, 2048]),
)
def test_lean_row_equals_the_full_row(
    seed: int,
    tasks: int,
    queries: int,
    grid: bool,
    classes: bool,
    apart: float,
    silent: list[int],
    prior: float,
    budget: int,
) -> None:
    """Without a ledger, and with a ledger from row to row."""
    quiet = [task for task in silent if task < tasks]
    library = Library(
        seed, tasks=tasks, queries=queries, grid=grid, classes=classes, apart=apart, silent=quiet
    )
    ledgers: tuple[RankLedger, RankLedger] = ({}, {})
    memories: tuple[QueryMemory, QueryMemory] = ({}, {})
    with patch.object(mode_evaluation, "MAX_QUERY_VECTORS", budget):
        for count in range(1, tasks + 1):
            whole = _lean(library.row(count, prior, full=True))
            assert library.row(count, prior, full=False) == whole
            goes_on, lean = (
                library.row(count, prior, full=full, ledger=ledger, memory=memory)
                for full, ledger, memory in zip((True, False), ledgers, memories, strict=True)
            )
            assert lean == _lean(goes_on)
            assert (lean.recalls, lean.pooled) == (whole.recalls, whole.pooled)


@pytest.mark.parametrize("grid", [False, True])
def test_wrongly_skipped_shards_change_the_row(grid: bool) -> None:
    """Libraries in which some pairs of a query and a shard can be skipped and others cannot."""
    library = Library(1, queries=9, grid=grid)
    row = library.row(4, 0.04, full=False)
    encoded = library.encoded["pinned"]
    assert 9 * 4 < encoded < 9 * 4 * 4
    assert row == _lean(library.row(4, 0.04, full=True))
    assert library.encoded["pinned"] - encoded == 9 * 4 * 4
    with patch.object(mode_evaluation, "can_reach_score", lambda lifts, bar: np.zeros(np.shape(lifts), bool)):
        wrong = library.row(4, 0.04, full=False)
    assert wrong.recalls["pinned"]["global"] != row.recalls["pinned"]["global"]
    assert (
        wrong.recalls["pinned"]["local"] == row.recalls["pinned"]["local"] != row.recalls["pinned"]["global"]
    )


def test_query_is_encoded_once_if_words_separate_the_tasks() -> None:
    """A query is encoded under its own task when the task is added, independent of the number of tasks."""
    library, ledger = Library(2, apart=80), RankLedger()
    for count in range(1, 5):
        before = dict(library.encoded)
        library.row(count, 0.04, full=False, ledger=ledger)
        # Queries of mode latest may change, so each is encoded again in every row.
        assert library.encoded == {"latest": before["latest"] + 7 * count, "pinned": before["pinned"] + 7}


@pytest.mark.parametrize(("apart", "prior"), [(80, 0), (0.5, 0.04)])
def test_query_is_encoded_for_all_tasks_without_separation(apart: float, prior: float) -> None:
    library, ledger = Library(3, apart=apart), RankLedger()
    for count in range(1, 5):
        before = dict(library.encoded)
        library.row(count, prior, full=False, ledger=ledger)
        encoded = {mode: library.encoded[mode] - before[mode] for mode in library.modes}
        assert encoded == {"latest": 7 * count * count, "pinned": 7 * (2 * count - 1)}


@pytest.mark.parametrize("margin", [-1e-4, 1e-4])
def test_shard_whose_videos_could_tie_is_scored(margin: float) -> None:
    """All cosines are 1, and the evidence of each text for its own task is one nat larger."""
    library = Library(4, tasks=2, queries=1, apart=1)
    library.table[:] = np.eye(1, 3, dtype=np.float32)
    library.galleries = [
        Gallery(
            name, MemoryShard(np.array([t]), library.table[0, :1]), np.array([t]), (Query(f"says {t}", t),)
        )
        for t, name in enumerate(library.names)
    ]
    prior = COSINE_LIMIT - 1 + margin
    row = library.row(2, prior, full=False)
    assert library.encoded["pinned"] == (2 if margin > 0 else 4)
    assert row == _lean(library.row(2, prior, full=True))
    level = library.row(2, 0, full=False).recalls["pinned"]["global"]["task 0"]
    assert level is not None
    assert level.meanr == 1.5, "with equal cosines and no routing, the other video ties"


@pytest.mark.parametrize("full", [False, True])
def test_lean_and_full_rows_do_not_share_a_ledger(tmp_path: Path, full: bool) -> None:
    library, ledger, path = Library(5, apart=80, classes=True), RankLedger(), tmp_path / "ledger.npz"
    library.row(2, 0.04, full=full, ledger=ledger)
    write_ledger(path, ledger)
    expected = {kind: library.row(3, 0.04, full=kind) for kind in (False, True)}
    for kind in (full, not full):
        before, known = library.encoded["pinned"], read_ledger(path)
        assert set(known) == {"pinned"}
        assert library.row(3, 0.04, full=kind, ledger=known) == expected[kind]
        afresh = {False: 7 * 3, True: 7 * 3 * 3}
        goes_on = {False: 7, True: 7 * (3 + 2)}
        assert library.encoded["pinned"] - before == (goes_on if kind == full else afresh)[kind]
        assert ("global_raw" in known["pinned"].task_ranks[0].ranks) is kind


def test_task_independent_query_is_encoded_once() -> None:
    library = Library(6)
    library.table[:] = library.table[:, :1]
    with patch.object(library, "is_task_independent", lambda mode: True):
        assert library.row(4, 0.02, full=False) == _lean(library.row(4, 0.02, full=True))
    assert library.encoded == {"latest": 2 * 4 * 7, "pinned": 2 * 4 * 7}
