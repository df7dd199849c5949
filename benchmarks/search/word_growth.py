"""Measure what the words of a large library cost when a process starts: seconds and private memory.

    python -m benchmarks.search.word_growth --videos 10000000 --out DIR

Captions of synthetic videos are drawn like those of the public clips of RESULTS: their number per video, their lengths
and word frequencies, with a vocabulary that grows with the captions by Heaps' law. Each video also has a name of its
own. Two processes map the words one after the other, so that they share memory, and search for the same queries: the
first with a cold page cache, the second with a warm one. The private memory of the second (``Private_Clean`` and
``Private_Dirty`` of smaps_rollup) is compared with that for a library of 1,000 videos.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.words.text_analysis import parse_query
from index.words.word_files import StoredWords
from index.words.word_index import TextKind, VideoText, WordIndex
from service.catalog.migrations import upgrade
from service.core.settings import settings
from service.search.library_words import LibraryWords, VideoTasks, word_files

_CAPTIONS, _SHARES = (1, 3), (0.32, 0.68)  # per video; 2.36 on average
_MEDIAN_WORDS, _LOG_DEVIATION, _MAX_WORDS = 6, 1.27, 250  # of a caption; 13.5 on average
_ZIPF, _OFFSET = 1.2, 5.0  # exponent and offset of the word frequencies (Mandelbrot 1953)
_HEAPS, _VOCABULARY, _TOKENS = 0.455, 1740, 26_169  # exponent; words in a number of tokens
_BATCH = 1 << 16
_DOMAIN_VIDEOS = 10_000
_SMALL = 1000
_QUERIES = 200


def write_library(folder: Path, videos: int) -> float:
    """Write the words of a library with an empty catalog, and return the seconds that it took."""
    _configure(folder)
    upgrade(settings())
    began = time.monotonic()
    index = WordIndex.empty().replace(_texts(videos, np.random.default_rng(0)))
    files = word_files(settings())
    with files.lock():
        ids = np.arange(1, videos + 1, dtype=np.int64)
        files.write(StoredWords(index, WordIndex.empty(), ids, [], 0))
    return time.monotonic() - began


def _texts(videos: int, rng: np.random.Generator) -> Iterator[tuple[int, list[VideoText]]]:
    tokens = videos * np.dot(_CAPTIONS, _SHARES) * _MEDIAN_WORDS * np.exp(_LOG_DEVIATION**2 / 2)
    vocabulary = int(_VOCABULARY * (tokens / _TOKENS) ** _HEAPS)
    words = _vocabulary(vocabulary)
    shares = np.cumsum((np.arange(vocabulary) + 1 + _OFFSET) ** -_ZIPF)
    for first in range(1, videos + 1, _BATCH):
        counts = rng.choice(_CAPTIONS, min(_BATCH, videos + 1 - first), p=_SHARES)
        lengths = np.clip(rng.lognormal(np.log(_MEDIAN_WORDS), _LOG_DEVIATION, counts.sum()), 1, _MAX_WORDS)
        ends = np.cumsum(lengths.astype(int))
        drawn = words[np.searchsorted(shares, rng.random(ends[-1]) * shares[-1])].tolist()
        captions = iter(" ".join(drawn[start:end]) for start, end in zip([0, *ends], ends, strict=False))
        for video, count in enumerate(counts.tolist(), first):
            texts = [VideoText(TextKind.CAPTION, next(captions)) for _ in range(count)]
            yield video, [*texts, VideoText(TextKind.NAME, f"clip {video:08d}")]


def _vocabulary(count: int) -> np.ndarray:
    """Make distinct words of five letters or more."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    digits = np.arange(count)[:, None] // 26 ** np.arange(5) % 26
    return np.array(["".join(letters[row]) for row in digits], dtype=object)


def _configure(folder: Path) -> None:
    os.environ |= {"CINESTRATA_DATA_DIR": str(folder), "CINESTRATA_LOG_LEVEL": "ERROR"}
    settings.cache_clear()


def _start(folder: Path, domains: list[Ids], pipe: Connection) -> None:
    """Start like an API process: map the words and count captions, then search until told to end."""
    _configure(folder)
    words = LibraryWords(files=word_files(settings()))
    began = time.monotonic()
    videos = VideoTasks(domains)
    words.prepare(videos.videos)
    captions = words.captions_of(videos)
    seconds = time.monotonic() - began
    frequent = _vocabulary(_QUERIES)
    taken = []
    for number in range(_QUERIES):
        units = parse_query(f"{frequent[number]} {frequent[-number - 1]} clip {number + 1:08d}")
        start = time.perf_counter()
        words.current().lookup(units)
        taken.append(1000 * (time.perf_counter() - start))
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    kibibytes = {name.rstrip(":"): int(value[0]) for name, *value in map(str.split, lines[1:])}
    pipe.send(
        {
            "seconds": seconds,
            "captions": captions.statistics.captions,
            "lookup_ms": dict(zip(("p50", "p99"), np.percentile(taken, [50, 99]).tolist(), strict=True)),
            "private_mib": (kibibytes["Private_Clean"] + kibibytes["Private_Dirty"]) / 1024,
            "shared_mib": kibibytes["Shared_Clean"] / 1024,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    )
    pipe.recv()


def measure(folder: Path, videos: int) -> dict[str, Any]:
    """Write the words of a library, start two processes on it, and return figures as JSON values."""
    built = write_library(folder, videos)
    files = [*settings().index_dir.glob("words/*/arrays")]
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    domains = np.array_split(np.arange(1, videos + 1, dtype=np.int64), max(1, videos // _DOMAIN_VIDEOS))
    context = get_context("spawn")
    figures, ends = [], []
    for _ in range(2):
        mine, theirs = context.Pipe()
        process = context.Process(target=_start, args=(folder, domains, theirs))
        process.start()
        figures.append(mine.recv())
        ends.append((mine, process))
    for pipe, process in ends:
        pipe.send(None)
        process.join()
    size = sum(path.stat().st_size for path in files)
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
    report = json.dumps({"libraries": rows, "private_mib_above_small": private}, indent=1)
    (options.out / "words.json").write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
