"""Measure what words and columns of a large library cost when a process starts: seconds and private memory.

    python -m benchmarks.search.word_growth --videos 10000000 --out DIR

Captions of synthetic videos are drawn like those of the public clips of RESULTS: their number per video, their lengths
and word frequencies, with a vocabulary that grows with the captions by Heaps' law. Each video also has a name of its
own, a duration, and two metadata fields: one of 20 cameras, and a title of its own. Two processes map the files one
after the other, so that they share memory, and search for the same queries: the first with a cold page cache, the
second with a warm one. The private memory of the second (``Private_Clean`` and
``Private_Dirty`` of smaps_rollup) is compared with that for a library of 1,000 videos.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting.markdown_tables import write_json
from index.arrays import Ids
from index.files.store_folder import StoreFolder
from index.words.segment_merging import merge_small
from index.words.text_analysis import parse_query
from index.words.unit_matching import LiveSegment, merge_segments_of
from index.words.video_columns import VideoColumns, VideoFacts
from index.words.word_files import StoredWords
from index.words.word_forms import ENGLISH
from index.words.word_index import WordIndex
from index.words.word_segment import ROW, TermTable, TextKind, WordSegment, make_segment
from service.catalog.migrations import upgrade
from service.core.settings import settings
from service.search.library_words import LibraryWords, VideoTasks, word_files

_CAPTIONS, _SHARES = (1, 3), (0.32, 0.68)  # per video; 2.36 on average
_MEDIAN_WORDS, _LOG_DEVIATION, _MAX_WORDS = 6, 1.27, 250  # of a caption; 13.5 on average
_ZIPF, _OFFSET = 1.2, 5.0  # exponent and offset of the word frequencies (Mandelbrot 1953)
_HEAPS, _VOCABULARY, _TOKENS = 0.455, 1740, 26_169  # exponent; words in a number of tokens
_PART = 1_000_000  # videos indexed at once
_DOMAIN_VIDEOS = 10_000
_SMALL = 1000
_QUERIES = 200
_CAMERAS = 20


def _segment(first: int, videos: int, vocabulary: int, rng: np.random.Generator) -> WordSegment:
    """Draw the captions of videos from a vocabulary, and index them with the names "clip <number>"."""
    digits = np.arange(vocabulary)[:, None] // 26 ** np.arange(5) % 26
    words = sorted({*map(bytes, (ord("a") + digits).astype(np.uint8)), b"clip"})
    shares = np.cumsum((rng.permutation(len(words)) + 1 + _OFFSET) ** -_ZIPF)
    captions = rng.choice(_CAPTIONS, videos, p=_SHARES)
    owners = np.repeat(np.arange(videos), captions + 1)
    is_name = np.zeros(len(owners), np.bool_)
    is_name[np.cumsum(captions + 1) - 1] = True
    drawn = rng.lognormal(np.log(_MEDIAN_WORDS), _LOG_DEVIATION, len(owners))
    lengths = np.where(is_name, 2, np.clip(drawn, 1, _MAX_WORDS)).astype(np.int64)
    documents = np.repeat(np.arange(len(owners), dtype=np.int32), lengths)
    positions = np.arange(len(documents)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    terms = videos + np.searchsorted(shares, rng.random(len(documents)) * shares[-1])
    ends = np.cumsum(lengths)[is_name]
    terms[ends - 2], terms[ends - 1] = videos + words.index(b"clip"), np.arange(videos)
    order = np.argsort(terms, kind="stable")
    rows = np.zeros(len(owners), ROW)
    rows["video"], rows["length"] = owners + first, lengths
    rows["kind"] = np.where(is_name, TextKind.NAME, TextKind.CAPTION)
    names = [b"%08d" % number for number in range(first, first + videos)]
    table, sizes = TermTable.of([*names, *words]), np.bincount(terms, minlength=videos + len(words))
    segment = make_segment(rows, table, sizes, documents[order], positions[order].astype(np.uint16))
    segment.stem_order(ENGLISH)
    return segment


def write_words(videos: int) -> None:
    """Write the words of a library whose catalog has no edits, part by part."""
    tokens = videos * np.dot(_CAPTIONS, _SHARES) * _MEDIAN_WORDS * np.exp(_LOG_DEVIATION**2 / 2)
    vocabulary = int(_VOCABULARY * (tokens / _TOKENS) ** _HEAPS)
    files, rng = word_files(settings()), np.random.default_rng(0)
    index, columns = WordIndex.empty(), VideoColumns()
    for first in range(0, videos, _PART):
        end = min(first + _PART, videos)
        live = LiveSegment.of(_segment(first + 1, end - first, vocabulary, rng))
        index = WordIndex(merge_small((*index.segments, live), merge_segments_of), end)
        columns = columns.replace(
            (
                video,
                VideoFacts(
                    round(5 + 300 * rng.random(), 2), {"camera": f"camera {n}", "title": f"Clip {video}"}
                ),
            )
            for video, n in enumerate(rng.integers(_CAMERAS, size=end - first), first + 1)
        )
        with files.lock():
            ids = np.arange(1, end + 1, dtype=np.int64)
            files.write(StoredWords(index, WordIndex.empty(), columns, ids, [], 0))
        stored = files.read()  # mapped, so that a merge has only its result in memory
        index, columns = stored.words, stored.columns


def _start(domains: list[Ids], pipe: Connection) -> None:
    """Start like an API process: map the words and count captions; search, report, and stay until told to end."""
    words = LibraryWords(files=word_files(settings()))
    began, worked = time.monotonic(), time.process_time()
    videos = VideoTasks(domains)
    domains.clear()  # as the shards' IDs after loading
    words.prepare(videos.videos)
    words.captions_of(videos)
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - worked
    frequent = [term for term, _ in words.current().suggest("a", _QUERIES)]
    taken = []
    for number, (word, other) in enumerate(zip(frequent, frequent[::-1], strict=True), 1):
        units = parse_query(f"{word} {other} clip {number:08d}")
        start = time.perf_counter()
        words.current().lookup(units)
        taken.append(1000 * (time.perf_counter() - start))
    filtered = []
    for number in range(_CAMERAS):
        start = time.perf_counter()
        for live in words.texts.columns.segments:
            live.ids_of(live.segment.fields["camera"].rows_equal_to((False, f"camera {number}")))
        filtered.append(1000 * (time.perf_counter() - start))
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    kibibytes = {name.rstrip(":"): int(value[0]) for name, *value in map(str.split, lines[1:])}
    pipe.send(
        {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "lookup_ms": dict(zip(("p50", "p99"), np.percentile(taken, [50, 99]).tolist(), strict=True)),
            "filter_ms": float(np.median(filtered)),
            "private_mib": (kibibytes["Private_Clean"] + kibibytes["Private_Dirty"]) / 1024,
            "shared_mib": kibibytes["Shared_Clean"] / 1024,
        }
    )
    pipe.recv()


def measure(folder: Path, videos: int) -> dict[str, Any]:
    """Write the words of a library with an empty catalog, start two processes, and return figures as JSON values."""
    os.environ |= {"CINESTRATA_DATA_DIR": str(folder), "CINESTRATA_LOG_LEVEL": "ERROR"}
    settings.cache_clear()
    upgrade(settings())
    began = time.monotonic()
    write_words(videos)
    built, store = time.monotonic() - began, StoreFolder(settings().index_dir)
    paths = [store.words_path / name / "arrays" for name in store.word_folders()]
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    domains = np.array_split(np.arange(1, videos + 1, dtype=np.int64), max(1, videos // _DOMAIN_VIDEOS))
    context = get_context("spawn")
    figures, ends = [], []
    for _ in range(2):
        mine, theirs = context.Pipe()
        process = context.Process(target=_start, args=(domains, theirs))
        process.start()
        figures.append(mine.recv())
        ends.append((mine, process))
    for pipe, process in ends:
        pipe.send(None)
        process.join()
    size = sum(path.stat().st_size for path in paths)
    return {"videos": videos, "build_seconds": built, "bytes": size, "cold": figures[0], "warm": figures[1]}


def main() -> None:
    """Parse the command line, measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--videos", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=Path("bench-growth"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for videos in (_SMALL, options.videos):
        with tempfile.TemporaryDirectory(prefix="cinestrata-growth-", dir=options.out) as folder:
            rows.append(measure(Path(folder), videos))
    private = rows[1]["warm"]["private_mib"] - rows[0]["warm"]["private_mib"]
    write_json(options.out / "words.json", {"libraries": rows, "private_mib_above_small": private})


if __name__ == "__main__":
    main()
