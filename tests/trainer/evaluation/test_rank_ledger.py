"""Rank ledgers: rows that reuse ranks have the same figures and compute only the ranks that the new task adds."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from index.arrays import Vectors
from media.media_paths import append_seal
from tests.word_routing import WordRouting
from trainer.evaluation.gallery import Gallery, Query
from trainer.evaluation.mode_evaluation import QueryMemory
from trainer.evaluation.rank_ledger import RankLedger, read_ledger, write_ledger
from trainer.evaluation.recall_row import RecallRow, evaluate_row
from trainer.video_embedding import MemoryShard

TASKS, QUERIES, VIDEOS, HELD_OUT, WORDS, DIM = 4, 11, 9, 6, 40, 3
NAMES = [f"task {t}" for t in range(TASKS)]


class Encoder(WordRouting):
    """Looks vectors up by the number at the end of a text, and counts the encoded pairs of a text and a task.

    Args:
        grid: Grid that vectors are rounded to, so that many scores are equal; 0 does not round.
        noise: Amplitude of rounding noise that differs between calls.
        shared: A text has one vector for all tasks and releases, also in mode ``latest``.
    """

    modes = ("latest", "pinned")

    def __init__(self, *, grid: float = 0.0, noise: float = 0.0, shared: bool = False) -> None:
        rng = np.random.default_rng(1)
        self.table = _unit(rng.normal(size=(TASKS * QUERIES, TASKS, DIM)), grid)
        self.presence = (rng.random((TASKS * QUERIES, WORDS)) < 0.3).astype(np.float32)
        self.release = 0
        self.makers = {name: f"release {name}" for name in NAMES}
        self.encoded = {mode: 0 for mode in self.modes}
        self.fail_after = 10**9
        self._noise, self._shared, self._rng = noise, shared, rng

    def token_presence(self, texts: Sequence[str]) -> Vectors:
        return self.presence[[int(text.split()[-1]) for text in texts]]

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Vectors:
        self.encoded[mode] += len(texts) * len(tasks)
        if sum(self.encoded.values()) > self.fail_after:
            raise KeyboardInterrupt
        rows = [int(text.split()[-1]) for text in texts]
        columns = [0 if self._shared else NAMES.index(task) for task in tasks]
        vectors = self.table[rows][:, columns]
        if mode == "latest" and not self._shared:  # every release rotates them
            vectors = np.roll(vectors, self.release, axis=-1)
        return (vectors + self._noise * self._rng.normal(size=vectors.shape)).astype(np.float32)

    def is_task_independent(self, mode: str) -> bool:
        return self._shared

    def encoding_identity(self, task: str, mode: str) -> str | None:
        return self.makers[task] if mode == "pinned" or self._shared else None


def _unit(vectors: np.ndarray, grid: float = 0.0) -> Vectors:
    if grid:
        vectors = np.round(vectors / grid) * grid + 1e-3
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def _galleries(grid: float = 0.0) -> list[Gallery]:
    """Return the nine videos each; six are held out, of which five have two captions; most videos have a class."""
    rng = np.random.default_rng(2)
    galleries = []
    for task, name in enumerate(NAMES):
        ids = 100 * task + rng.permutation(VIDEOS)
        held_out = rng.permutation(ids)[:HELD_OUT]
        queries = tuple(
            Query(f"{name} says {QUERIES * task + n}", int(held_out[n % HELD_OUT])) for n in range(QUERIES)
        )
        labels = {int(video): "abc"[int(video) % 3] for video in ids if video % 5}
        shard = MemoryShard(ids, _unit(rng.normal(size=(VIDEOS, DIM)), grid))
        galleries.append(Gallery(name, shard, held_out, queries, labels))
    return galleries


def _profiles() -> Vectors:
    profiles = (4 * np.random.default_rng(3).random((TASKS, WORDS))).astype(np.float32)
    profiles[1] = profiles[0]  # two tasks with equal routing profiles
    return profiles


def _rows(
    encoder: Encoder, galleries: Sequence[Gallery], profiles: Vectors, prior: float, ledger: RankLedger | None
) -> list[RecallRow]:
    memory: QueryMemory = {}
    rows = []
    for count in range(1, len(galleries) + 1):
        encoder.release = count
        row = evaluate_row(
            encoder, galleries[:count], profiles[:count], prior=prior, memory=memory, ledger=ledger
        )
        rows.append(row)
    return rows


@pytest.mark.parametrize("prior", [0, 0.02])
@pytest.mark.parametrize("grid", [0, 1.5])
@pytest.mark.parametrize("shared", [False, True])
def test_row_with_ledger_equals_row_without(prior: float, grid: float, shared: bool) -> None:
    galleries, profiles, ledger = _galleries(grid), _profiles(), RankLedger()
    afresh = _rows(Encoder(grid=grid, shared=shared), galleries, profiles, prior, None)
    goes_on = _rows(Encoder(grid=grid, shared=shared), galleries, profiles, prior, ledger)
    assert goes_on == afresh
    assert set(ledger) == ({"latest", "pinned"} if shared else {"pinned"})
    last = goes_on[-1]
    assert last.recalls["pinned"]["global"] != last.recalls["pinned"]["local"]
    assert last.hubness["pinned"] is not None
    equal = [standing.ranks["global_all"].equal for standing in ledger["pinned"].task_ranks]
    assert (np.concatenate(equal) > 1).any() == bool(grid), "equal scores occur only on a grid"


def test_rounding_between_batches_changes_no_figure() -> None:
    galleries, profiles = _galleries(), _profiles()
    afresh = _rows(Encoder(), galleries, profiles, 0.02, None)
    noisy = _rows(Encoder(noise=3e-8), galleries, profiles, 0.02, RankLedger())
    for row, other in zip(afresh, noisy, strict=True):
        row.drift, other.drift = {}, {}  # an angle, and no count
    assert noisy == afresh


def test_only_new_pairs_of_query_and_task_are_encoded() -> None:
    """Fixed vectors: each query once under each task. Vectors that change with the release: under all tasks again."""
    for shared in (False, True):
        encoder, galleries, profiles, ledger = Encoder(shared=shared), _galleries(), _profiles(), RankLedger()
        for count in range(1, TASKS + 1):
            before = dict(encoder.encoded)
            evaluate_row(encoder, galleries[:count], profiles[:count], prior=0.02, ledger=ledger)
            encoded = {mode: encoder.encoded[mode] - before[mode] for mode in encoder.modes}
            new, old = QUERIES * count, QUERIES * (count - 1)
            if shared:
                assert encoded == {"latest": QUERIES, "pinned": QUERIES}
            else:
                assert encoded == {"latest": count * new, "pinned": new + old}


def _other_text(galleries: list[Gallery]) -> None:
    queries = (*galleries[0].queries[1:], replace(galleries[0].queries[0], text="another one 5"))
    galleries[0] = replace(galleries[0], queries=queries)


def _other_held_out(galleries: list[Gallery]) -> None:
    spare = sorted(set(galleries[1].shard.ids.tolist()) - set(galleries[1].held_out.tolist()))
    galleries[1] = replace(galleries[1], held_out=np.append(galleries[1].held_out, spare[0]))


def _other_vectors(galleries: list[Gallery]) -> None:
    shard = galleries[0].shard
    galleries[0] = replace(galleries[0], shard=MemoryShard(shard.ids, -shard.vectors(shard.ids)))


def _other_ids(galleries: list[Gallery]) -> None:
    """Return the same videos in another order."""
    shard = galleries[0].shard
    ids = shard.ids[::-1].copy()
    galleries[0] = replace(galleries[0], shard=MemoryShard(ids, shard.vectors(ids)))


def _other_classes(galleries: list[Gallery]) -> None:
    galleries[1] = replace(galleries[1], labels={int(video): "a" for video in galleries[1].shard.ids})


def _other_order(galleries: list[Gallery]) -> None:
    galleries[0], galleries[1] = galleries[1], galleries[0]


@pytest.mark.parametrize(
    "change", [_other_text, _other_held_out, _other_vectors, _other_ids, _other_classes, _other_order]
)
def test_changed_tasks_are_evaluated_again(change: Callable[[list[Gallery]], None]) -> None:
    galleries, profiles, ledger = _galleries(), _profiles(), RankLedger()
    _rows(Encoder(), galleries[:2], profiles, 0.02, ledger)
    change(galleries)
    _is_evaluated_again(Encoder(), galleries, profiles, 0.02, ledger)


def test_changed_prior_profile_or_encoder_is_evaluated_again() -> None:
    galleries, profiles = _galleries(), _profiles()
    replaced = Encoder()
    replaced.makers[NAMES[0]] = "another release"
    other = profiles.copy()
    other[0, 0] += 1
    silent = profiles.copy()
    silent[2] = 0  # its evidence is that of the likeliest other task, and may change with the next
    for encoder, words, prior in (
        (Encoder(), profiles, 0.03),
        (Encoder(), other, 0.02),
        (replaced, profiles, 0.02),
        (Encoder(), silent, 0.02),
    ):
        ledger = RankLedger()
        _rows(Encoder(), galleries[:2], profiles, 0.02, ledger)
        _is_evaluated_again(encoder, galleries, words, prior, ledger)


def _is_evaluated_again(
    encoder: Encoder, galleries: list[Gallery], profiles: Vectors, prior: float, ledger: RankLedger
) -> None:
    row = evaluate_row(encoder, galleries[:3], profiles[:3], prior=prior, ledger=ledger)
    assert encoder.encoded["pinned"] == 3 * 3 * QUERIES
    assert row == evaluate_row(Encoder(), galleries[:3], profiles[:3], prior=prior)


def test_removed_task_invalidates_the_ledger() -> None:
    galleries, profiles, ledger, encoder = _galleries(), _profiles(), RankLedger(), Encoder()
    _rows(encoder, galleries[:3], profiles, 0.02, ledger)
    row = evaluate_row(encoder, galleries[:2], profiles[:2], prior=0.02, ledger=ledger)
    assert row == evaluate_row(encoder, galleries[:2], profiles[:2], prior=0.02)


def _without_queries(galleries: list[Gallery], task: int) -> list[Gallery]:
    return [replace(g, queries=()) if position == task else g for position, g in enumerate(galleries)]


def test_task_without_its_queries_keeps_the_ranks_of_the_others(tmp_path: Path) -> None:
    galleries, profiles, path = _galleries(), _profiles(), tmp_path / "ledger.npz"
    ledger = RankLedger()
    evaluate_row(Encoder(), galleries[:3], profiles[:3], prior=0.02, full=False, ledger=ledger)
    fewer = _without_queries(galleries, 1)
    write_ledger(path, ledger)
    encoder, ledger = Encoder(), read_ledger(path)
    row = evaluate_row(encoder, fewer, profiles, prior=0.02, modes=["pinned"], full=False, ledger=ledger)
    assert row == evaluate_row(Encoder(), fewer, profiles, prior=0.02, modes=["pinned"], full=False)
    assert row.recalls["pinned"]["global"][NAMES[1]] is None
    assert encoder.encoded["pinned"] <= QUERIES * (TASKS + 2), "the newest queries, and the new task's shard"
    _is_evaluated_again(Encoder(), galleries, profiles, 0.02, ledger)  # the queries are back


def test_row_with_all_measures_is_evaluated_again_without_queries_of_a_task() -> None:
    """Captions are ranked among the captions of all tasks."""
    galleries, profiles, ledger = _galleries(), _profiles(), RankLedger()
    _rows(Encoder(), galleries[:3], profiles, 0.02, ledger)
    fewer = _without_queries(galleries, 1)
    row = evaluate_row(Encoder(), fewer, profiles, prior=0.02, ledger=ledger)
    assert row == evaluate_row(Encoder(), fewer, profiles, prior=0.02)


def test_interrupted_row_leaves_no_partial_page() -> None:
    galleries, profiles, ledger, encoder = _galleries(), _profiles(), RankLedger(), Encoder()
    _rows(encoder, galleries[:2], profiles, 0.02, ledger)
    encoder.fail_after = sum(encoder.encoded.values()) + 9 * QUERIES + 2 * QUERIES  # within the pinned pass
    with pytest.raises(KeyboardInterrupt):
        evaluate_row(encoder, galleries[:3], profiles[:3], prior=0.02, ledger=ledger)
    encoder.fail_after = 10**9
    row = evaluate_row(encoder, galleries[:3], profiles[:3], prior=0.02, ledger=ledger)
    assert row == evaluate_row(encoder, galleries[:3], profiles[:3], prior=0.02)


def test_second_row_of_the_same_tasks_encodes_nothing() -> None:
    galleries, profiles, ledger, encoder = _galleries(), _profiles(), RankLedger(), Encoder()
    rows = _rows(encoder, galleries, profiles, 0.02, ledger)
    before, shares = encoder.encoded["pinned"], []  # type: ignore[var-annotated]
    again = evaluate_row(
        encoder, galleries, profiles, prior=0.02, modes=["pinned"], ledger=ledger, report=shares.append
    )
    assert encoder.encoded["pinned"] == before
    assert again.recalls["pinned"] == rows[-1].recalls["pinned"]


# -- on disk ----------------------------------------------------------------------------------------------------


def _values(ledger: RankLedger) -> object:
    """Return all values of a ledger, for comparison."""

    def plain(of: object) -> object:
        if isinstance(of, np.ndarray):
            return of.dtype.str, of.tobytes()
        return {name: plain(part) for name, part in (of if isinstance(of, Mapping) else vars(of)).items()}

    return {mode: (page.digests, [plain(s) for s in page.task_ranks]) for mode, page in ledger.items()}


@pytest.mark.parametrize("shared", [False, True])
def test_ledger_from_file_equals_ledger_in_memory(tmp_path: Path, shared: bool) -> None:
    """The ledger is written and read between any two rows; one task has no queries and no classes."""
    galleries, profiles, path = _galleries(1.5), _profiles(), tmp_path / "ledger.npz"
    galleries[1] = replace(galleries[1], queries=(), labels=None)
    encoder, whole = Encoder(grid=1.5, shared=shared), Encoder(grid=1.5, shared=shared)
    for count in range(1, TASKS + 1):
        ledger = read_ledger(path)
        row = evaluate_row(encoder, galleries[:count], profiles[:count], prior=0.02, ledger=ledger)
        write_ledger(path, ledger)
        assert _values(read_ledger(path)) == _values(ledger)
        assert row == evaluate_row(whole, galleries[:count], profiles[:count], prior=0.02)
        assert list(tmp_path.iterdir()) == [path], "no temporary file remains"
    queries = QUERIES * (TASKS - 1)
    assert encoder.encoded["pinned"] == (queries if shared else queries * TASKS) < whole.encoded["pinned"]


def test_ledger_file_without_the_last_row_is_continued(tmp_path: Path) -> None:
    """The writer died after a task was published and before the ledger was written."""
    galleries, profiles, path, encoder = _galleries(), _profiles(), tmp_path / "ledger.npz", Encoder()
    ledger = RankLedger()
    _rows(Encoder(), galleries[:2], profiles, 0.02, ledger)
    write_ledger(path, ledger)
    row = evaluate_row(encoder, galleries, profiles, prior=0.02, ledger=read_ledger(path))
    assert row == evaluate_row(Encoder(), galleries, profiles, prior=0.02)
    assert encoder.encoded["pinned"] == QUERIES * (TASKS * TASKS - 2 * 2)


def test_missing_or_damaged_file_gives_an_empty_ledger(tmp_path: Path) -> None:
    galleries, profiles, path = _galleries(), _profiles(), tmp_path / "ledger.npz"
    assert read_ledger(path) == {}
    ledger = RankLedger()
    _rows(Encoder(), galleries[:3], profiles, 0.02, ledger)
    write_ledger(path, ledger)
    good, known = path.read_bytes(), _values(ledger)
    rng = np.random.default_rng(5)
    refused = 0
    for position in rng.integers(0, len(good), 200):
        broken = bytearray(good)
        broken[position] ^= 1 << rng.integers(8)
        path.write_bytes(broken)
        found = read_ledger(path)
        assert found == {} or _values(found) == known, (
            "a damaged ledger is either refused or read without a difference"
        )
        refused += not found
    assert refused > 100
    for part in (b"", good[: len(good) // 2], good[:-1], b"PK" + bytes(100)):
        path.write_bytes(part)
        assert read_ledger(path) == {}
    path.unlink()
    path.mkdir()
    assert read_ledger(path) == {}


def test_file_with_inconsistent_columns_is_not_read(tmp_path: Path) -> None:
    path, ledger = tmp_path / "ledger.npz", RankLedger()
    _rows(Encoder(), _galleries()[:2], _profiles(), 0.02, ledger)
    write_ledger(path, ledger)
    with np.load(path) as file:
        columns = dict(file)
    assert columns["pinned/ranks/global/better"].shape == (2 * QUERIES,)
    for name, values in {
        "pinned/ranks/global/better": columns["pinned/ranks/global/better"][1:],
        "pinned/ranks/global/equal": columns["pinned/ranks/global/equal"].astype(np.float64),
        "pinned/nearest/scores": columns["pinned/nearest/scores"][:, 1:],
        "pinned/query_count": columns["pinned/query_count"][:1],
        "pinned/digests": columns["pinned/digests"][:1],
        "pinned/queries": np.array([{}], object),  # pickled
    }.items():
        np.savez(path, **{**columns, name: values})
        append_seal(path)
        assert read_ledger(path) == {}, name
    np.savez(path, **{name: values for name, values in columns.items() if "captions" not in name})
    append_seal(path)
    assert read_ledger(path) == {}
    np.savez(path, **columns)
    append_seal(path)
    assert _values(read_ledger(path)) == _values(ledger)


def test_empty_ledger_removes_the_file(tmp_path: Path) -> None:
    path, ledger = tmp_path / "ledger.npz", RankLedger()
    write_ledger(path, ledger)
    _rows(Encoder(), _galleries()[:1], _profiles(), 0.02, ledger)
    write_ledger(path, ledger)
    assert path.exists()
    write_ledger(path, RankLedger())
    assert not path.exists()


def test_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ledger = tmp_path / "ledger.npz", RankLedger()
    _rows(Encoder(), _galleries()[:1], _profiles(), 0.02, ledger)
    write_ledger(path, ledger)

    def full(file: IO[bytes], **_: object) -> None:
        file.write(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        write_ledger(path, ledger)
    assert list(tmp_path.iterdir()) == [path]
    assert _values(read_ledger(path)) == _values(ledger)


def test_killed_writer_leaves_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ledger = tmp_path / "ledger.npz", RankLedger()
    _rows(Encoder(), _galleries()[:1], _profiles(), 0.02, ledger)
    write_ledger(path, ledger)
    before = _values(ledger)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    _rows(Encoder(), _galleries()[:2], _profiles(), 0.02, ledger)
    for module, name in ((np, "savez"), (os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(KeyboardInterrupt):
                write_ledger(path, ledger)
        assert _values(read_ledger(path)) == before
    write_ledger(path, ledger)
    assert len(read_ledger(path)["pinned"].task_ranks) == 2
    assert list(tmp_path.iterdir()) == [path]
