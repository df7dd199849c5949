"""Search at a constant rate while faults strike, and compare the answers to fixed queries."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx

from benchmarks.chaos.operation_driver import QUERIES

_INTERVAL = 0.25
_TIMEOUT = 20.0
_DEPTH = 20
_TOLERANCE = 2e-6  # of a score: batches of different sizes round float32 sums differently

Answer = list[tuple[str, float]]


class FailedSearch(NamedTuple):
    """A search without an answer: start and end on the monotonic clock, and the response or the connection error."""

    started: float
    ended: float
    reason: str


class SearchStream:
    """Sends the fixed queries in turn, each on a new connection, until it is stopped."""

    def __init__(self, url: str) -> None:
        self.count = 0
        self.failed: list[FailedSearch] = []
        self._url = url
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="searches")

    def start(self) -> None:
        """Start the searches."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current search."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        for text in itertools.cycle(QUERIES):
            if self._stopped.wait(_INTERVAL):
                return
            started = time.monotonic()
            if reason := self._search(text):
                self.failed.append(FailedSearch(started, time.monotonic(), reason))
            self.count += 1

    def _search(self, text: str) -> str:
        """Send a search; returns why it has no complete answer, or an empty text."""
        url, query = f"{self._url}/search", {"q": text}
        try:
            response = httpx.get(url, params=query, trust_env=False, timeout=_TIMEOUT)
        except httpx.HTTPError as error:
            return repr(error)
        if response.status_code != httpx.codes.OK:
            return f"{response.status_code} {response.text[:200]}"
        degraded = response.json()["degraded"]
        return f"degraded: {degraded}" if degraded else ""


def read_answers(url: str) -> list[Answer]:
    """Read an API's answers to the fixed queries: URIs and scores of the results; synced videos have random IDs."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        answers = []
        for text in QUERIES:
            response = http.get("/search", params={"q": text, "k": _DEPTH, "routes": "all"})
            response.raise_for_status()
            results: list[dict[str, Any]] = response.json()["results"]
            answers.append([(result["uri"], float(result["score"])) for result in results])
    return answers


def compare_answers(expected: Sequence[Answer], found: Sequence[Answer]) -> list[str]:
    """Find the differences between two lists of answers: scores by rank, and videos unless their scores are equal.

    Each difference begins with the number of its query; consecutive numbers suggest that the state changed while the
    answers were read.
    """
    differences = []
    for number, (query, wanted, given) in enumerate(zip(QUERIES, expected, found, strict=True), 1):
        text = f"query {number}, {query!r}"
        scores = [score for _, score in wanted]
        if len(wanted) != len(given):
            differences.append(f"{text}, has {len(given)} results instead of {len(wanted)}")
            continue
        for rank, ((video, score), (other, other_score)) in enumerate(zip(wanted, given, strict=True), 1):
            if abs(score - other_score) > _TOLERANCE:
                differences.append(f"{text}: the score at rank {rank} is {other_score} instead of {score}")
                break
            ties = sum(abs(score - tied) <= _TOLERANCE for tied in scores)
            is_cut = rank == len(wanted) or abs(score - scores[-1]) <= _TOLERANCE  # ties continue below
            if video != other and ties == 1 and not is_cut:
                differences.append(f"{text}: rank {rank} is {other} instead of {video}")
                break
    return differences
