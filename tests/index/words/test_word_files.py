"""The word files: what a process maps is what another one wrote, or an error that names the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from index.errors import WordsUnreadable
from index.files.durable_files import replace_text
from index.shard_store import ShardStore
from index.words.text_analysis import parse_query
from index.words.unit_matching import LiveSegment
from index.words.video_columns import VideoColumns, VideoFacts
from index.words.word_files import StoredWords, WordFiles
from index.words.word_index import VideoText, WordIndex
from index.words.word_segment import WordSegment
from tests.index.disk_faults import flip_byte
from tests.index.published_shards import age
from tests.index.words.test_word_index import captions, changes, hits, index_of, large_texts, phrases, states

ANALYSIS = "test/1"


def stored(words: WordIndex, transcripts: WordIndex | None = None, edit: int = 7) -> StoredWords:
    videos = np.arange(words.videos, dtype=np.int64)
    columns = VideoColumns().replace([(1, VideoFacts(2.5, {"place": ["pond", "sea"]}, [(0.0, 1.5)]))])
    feedback = [[1, "key", "text", -2]]
    return StoredWords(words, transcripts or WordIndex.empty(), columns, videos, feedback, edit)


def written(root: Path, *indices: WordIndex) -> WordFiles:
    """Write generations one after the other, and return files that have nothing of them in memory."""
    files = WordFiles(root, ANALYSIS)
    for index in indices:
        with files.lock():
            files.write(stored(index))
    return WordFiles(root, ANALYSIS)


def segments(index: WordIndex) -> list[WordSegment]:
    return [live.segment for live in index.segments]


@settings(max_examples=20)  # each syncs files
@given(changes, phrases)
def test_mapped_words_answer_like_those_in_memory(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, list[VideoText]]]], query: str
) -> None:
    folder = tmp_path_factory.mktemp("words")
    units, ids = parse_query(query), np.arange(10)
    *_, (index, _) = states(batches)
    mapped = written(folder, index).read().words
    expected, matches = index.lookup(units), mapped.lookup(units)
    for name, values in vars(expected).items():
        assert np.array_equal(values, getattr(matches, name)), name
    assert mapped.captioned(ids).tolist() == index.captioned(ids).tolist()
    assert (mapped.videos, mapped.documents) == (index.videos, index.documents)
    assert mapped.suggest("s", 3) == index.suggest("s", 3)
    changed, again = (each.replace([(3, captions("a dog sits")), (4, [])]) for each in (mapped, index))
    assert hits(changed, query) == hits(again, query)


def test_generation_keeps_unchanged_segments_and_replaced_documents(tmp_path: Path) -> None:
    before = WordIndex.empty().replace(large_texts(2000, seed=1).items())
    (large,) = before.segments
    video = int(large.segment.videos.ids[0])
    after = before.replace([(video, captions("heron")), (-5, captions("heron owl"))])
    files = written(tmp_path, before, after)
    read = files.read()
    assert (read.edit, read.feedback) == (7, [[1, "key", "text", -2]])
    assert read.videos.tolist() == list(range(after.videos))
    assert sorted(hits(read.words, "heron")) == [-5, video]
    assert hits(read.words, "w1") == hits(after, "w1")
    assert [len(live) for live in read.words.segments] == [len(live) for live in after.segments]
    (column,) = (live.segment for live in read.columns.segments)
    assert column.durations.tolist() == [2.5]
    assert column.spans.tolist() == [[0.0, 1.5]]
    places = {(False, "pond"): 1, (False, "sea"): 1}
    assert read.columns.count_values(np.array([1]), ["place"]) == {"place": (1, places)}
    again = files.read().words
    assert all(one is other for one, other in zip(segments(read.words), segments(again), strict=True))
    assert not read.words.segments[0].segment.documents.flags.writeable
    assert len([*(tmp_path / "words").iterdir()]) == 5, (
        "a large segment, a small one, one of columns, and two states"
    )


def test_folders_that_no_generation_names_are_removed_an_hour_later(tmp_path: Path) -> None:
    store = ShardStore(tmp_path)
    files = written(tmp_path, index_of("a heron"), index_of("an owl"))
    replace_text(store.manifest_path, store.manifest().dumps())
    mapped = files.read().words
    store.collect_garbage()
    assert len([*(tmp_path / "words").iterdir()]) == 4, "processes may be about to map them"
    age(*store.folders())
    store.collect_garbage()
    assert {path.name for path in (tmp_path / "words").iterdir()} == store.word_folders()
    files.discard()
    age(*store.folders())
    store.collect_garbage()
    assert not [*(tmp_path / "words").iterdir()]
    assert hits(mapped, "owl") == [0], "a process keeps what it has mapped"


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    flip_byte(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink])
@pytest.mark.parametrize("name", ["words.json", "words/*/arrays"])
def test_damage_is_named_and_repaired(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    index = index_of("a heron", "an owl")
    files = written(tmp_path, index)
    for path in tmp_path.glob(name):
        damage(path)
    with pytest.raises(WordsUnreadable, match=r"words"):
        files.read()
    assert files.find_damage() is not None
    assert hits(written(tmp_path, index).read().words, "owl") == [1]
    assert files.find_damage() is None


def test_other_analysis_is_refused(tmp_path: Path) -> None:
    files = written(tmp_path, index_of("a heron"))
    assert WordFiles(tmp_path / "other", ANALYSIS).stamp() is None
    with pytest.raises(WordsUnreadable, match="missing"):
        WordFiles(tmp_path / "other", ANALYSIS).read()
    with pytest.raises(WordsUnreadable, match="another version"):
        WordFiles(tmp_path, "test/2").read()
    assert hits(files.read().words, "heron") == [0]


STEPS = (
    "index.words.word_files.np.lib.format.write_array",
    "index.files.store_folder.os.rename",
    "index.files.durable_files.os.replace",
)


@pytest.mark.parametrize("step", STEPS)
def test_killed_writer_leaves_the_previous_generation(tmp_path: Path, step: str) -> None:
    before = written(tmp_path, index_of("a heron"))
    code = f"""
import os, signal, sys
from pathlib import Path
from unittest import mock
from tests.index.words.test_word_files import index_of, written
mock.patch({step!r}, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)).start()
written(Path(sys.argv[1]), index_of("an owl"))
"""
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert hits(before.read().words, "heron") == [0]
    assert hits(written(tmp_path, index_of("an owl")).read().words, "owl") == [0]


def test_only_one_process_writes(tmp_path: Path) -> None:
    files = WordFiles(tmp_path, ANALYSIS)
    code = "import sys; from pathlib import Path; from index.words.word_files import WordFiles\n"
    code += f"with WordFiles(Path(sys.argv[1]), {ANALYSIS!r}).lock(0): pass"
    with files.lock():
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=60)
    assert b"TimeoutError" in other.stderr


def test_state_of_all_alive_documents_takes_no_memory() -> None:
    (live,) = index_of("a heron").segments
    assert (live.alive.strides, LiveSegment.of(live.segment).alive.tolist()) == ((0,), [True])
