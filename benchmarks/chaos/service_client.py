"""The clients of a chaos run: one changes the library, and one searches at a constant rate while faults strike.

They follow the documentation for clients: a request that gets no answer, 429 or 503 is sent again with the same
``Idempotency-Key``. A failed task is retried as its hint says, and counted.
"""

from __future__ import annotations

import itertools
import random
import shutil
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx

from benchmarks.chaos.library_checker import ExpectedVideos
from benchmarks.ingest.embedded_service import FINAL_STATES

_REQUEST_SECONDS = 30.0
_PAUSE = 0.3
_MAX_OPERATIONS = 3  # in a round


class RoundTimeout(Exception):
    """An operation did not finish in time; the message names it."""


class OperationDriver:
    """Runs operations over HTTP, and collects acknowledged videos, errors of retried tasks, and odd responses."""

    root = ""  # of the URIs of videos

    def __init__(self, url: str, clips: Sequence[Path], media: Path, headers: Mapping[str, str] = {}) -> None:
        self.expected = ExpectedVideos()
        self.failures: list[str] = []
        self.refusals: Counter[str] = Counter()
        self._http = httpx.Client(base_url=url, timeout=_REQUEST_SECONDS, trust_env=False, headers=headers)
        self._clips, self._media = clips, media
        self._tasks: dict[str, str] = {}  # domain → its task's ID
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_MAX_OPERATIONS)
        self._give_up = 0.0
        self._rounds = 0

    def start(self, operations: Sequence[Operation], seconds: float) -> list[Future[None]]:
        """Start a round's operations at the same time; one that is unfinished after the time raises RoundTimeout."""
        self._give_up = time.monotonic() + seconds
        self._rounds += 1
        return [
            self._pool.submit(self._execute, operation, f"{operation.kind}-{operation.domain}-{self._rounds}")
            for operation in operations
        ]

    def wait_until_idle(self, seconds: float) -> list[str]:
        """Wait until every task is finished; returns the names of those that are not."""
        deadline = time.monotonic() + seconds
        while True:
            tasks = self._request("GET", "/tasks").json()
            busy = [
                f"{task['name']} ({task['state']})" for task in tasks if task["state"] not in FINAL_STATES
            ]
            if not busy or time.monotonic() > deadline:
                return busy
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown()
        self._http.close()

    def _execute(self, operation: Operation, key: str) -> None:
        if operation.kind == "delete":
            self._delete(self._tasks[operation.domain], operation.deleted)
        elif operation.kind == "sync":
            self._sync(operation)
        elif operation.kind == "relearn":
            route = f"/tasks/{self._tasks[operation.domain]}/relearn"
            task = self._create(route, {"name": operation.into}, key)
            self._tasks[operation.into] = task
            self._finish(task)
        elif operation.kind in ("upgrade", "undo", "accept"):
            self._upgrade(operation)
        else:
            self._add_videos(operation, key)

    def _add_videos(self, operation: Operation, key: str) -> None:
        entries = [self._entry(video, operation.domain) for video in operation.videos]
        if operation.kind == "ingest":
            body = {"name": operation.domain, "settings": TRAINING_SETTINGS, "videos": entries}
            task = self._tasks[operation.domain] = self._create("/tasks", body, key)
        else:
            task = self._create(f"/tasks/{self._tasks[operation.domain]}/videos", {"videos": entries}, key)
        with self._lock:
            added = {video.id for video in operation.videos}
            self.expected.stored |= added - set(operation.deleted)
        for video in operation.deleted:
            # A deletion that was committed but not acknowledged finds nothing the second time.
            self._request("DELETE", f"/videos/{video}", accepted_again=(404,))
            with self._lock:
                self.expected.deleted.add(video)
        self._finish(task)

    def _delete(self, task: str, videos: Sequence[str]) -> None:
        with self._lock:  # from the request on, they may be gone
            self.expected.stored -= set(videos)
        self._request("DELETE", f"/tasks/{task}/videos", json={"videos": list(videos)})
        with self._lock:
            self.expected.deleted |= set(videos)

    def _upgrade(self, operation: Operation) -> None:
        """Upgrade a domain, or undo or accept that; a request that was lost after its commit conflicts with itself."""
        time.sleep(_PAUSE)  # undoing and acceptance end before a kill point could be armed
        domain = self._tasks[operation.domain]
        route, body = f"/tasks/{domain}/upgrade", {"method": "ffa_tame"}
        if operation.kind != "upgrade":
            self._request("POST", f"{route}/{operation.kind}", accepted_again=(409,))
            return
        self._request("POST", route, json=body, accepted_again=(409,))
        tasks = self._request("GET", "/tasks").json()
        self._finish([task["id"] for task in tasks if task["upgrades"] and task["into"] == domain][-1])

    def _sync(self, operation: Operation) -> None:
        uris = set()
        for video in operation.videos:
            name = "-".join((*video.captions[0].split(), str(video.number))) + ".mp4"
            uris.add(self._store(video.number, f"{operation.domain}/{name}"))
        names = {"name": operation.domain, "source": self.root + operation.domain}
        body = {**names, "every_seconds": 3600, "captions_from_names": True}
        while True:
            previous = self._last_run(operation.domain)
            self._request("POST", "/syncs", json=body)
            if self._finish_sync(operation.domain, previous):
                break
        with self._lock:
            self.expected.uris |= uris

    def _last_run(self, name: str) -> dict[str, Any] | None:
        """Get a domain's registered sync, if one of its runs has finished and none is running."""
        for sync in self._request("GET", "/syncs").json():
            if sync["name"] == name and sync["finished_at"] and not sync["running"]:
                return dict(sync)
        return None

    def _finish_sync(self, name: str, previous: dict[str, Any] | None) -> bool:
        """Wait for the end of the next run and of its tasks; returns whether the run succeeded."""
        before = previous and previous["finished_at"]
        while (sync := self._last_run(name)) is None or sync["finished_at"] == before:
            self._require_time(f"the sync of {name}")
            time.sleep(_PAUSE)
        if sync["error"]:
            self.failures.append(f"sync: {sync['error']}")
            return False
        for task in self._request("GET", "/tasks").json():
            if task["state"] not in FINAL_STATES or task["name"].startswith(name):
                self._finish(task["id"])
        return True

    def _entry(self, video: Video, domain: str) -> dict[str, Any]:
        split = ("train", "train", "train", "val", "test")[video.number % 5]
        uri = self._store(video.number, f"{domain}-files/{video.number}.mp4")
        return {"id": video.id, "uri": uri, "captions": list(video.captions), "split": split}

    def _store(self, number: int, name: str) -> str:
        """Store a clip where the service finds it by a name, and return its URI."""
        path = self._media / name
        path.parent.mkdir(exist_ok=True)
        staged = path.with_name(f".{path.name}")
        shutil.copyfile(self._clips[number], staged)
        staged.rename(path)
        return name

    def _create(self, route: str, body: Mapping[str, Any], key: str) -> str:
        response = self._request("POST", route, json=body, headers={"Idempotency-Key": key})
        return str(response.json()["id"])

    def _finish(self, task: str) -> None:
        """Wait until a task is ready, retrying it if it fails."""
        while True:
            self._require_time(f"task {task}")
            details = self._request("GET", f"/tasks/{task}").json()
            if details["state"] == "ready":
                return
            if details["state"] in FINAL_STATES:
                self.failures.append(f"{details['name']}: {details['error']}")
                self._request("POST", f"/tasks/{task}/retry", accepted=(409,))
            time.sleep(_PAUSE)

    def _request(
        self,
        method: str,
        route: str,
        accepted: Sequence[int] = (),
        accepted_again: Sequence[int] = (),
        **fields: Any,
    ) -> httpx.Response:
        """Send a request until a status acknowledges it, or one that does so once it was sent before."""
        while True:
            self._require_time(f"{method} {route}")
            with suppress(httpx.HTTPError):
                response = self._http.request(method, route, **fields)
                if response.is_success or response.status_code in accepted:
                    return response
                repeatable = response.status_code in (429, 503) or "Retry-After" in response.headers
                if not repeatable:
                    with self._lock:
                        self.refusals[f"{method} {route}: {response.status_code} {response.text[:300]}"] += 1
            accepted = (*accepted, *accepted_again)
            time.sleep(_PAUSE)

    def _require_time(self, action: str) -> None:
        if time.monotonic() > self._give_up:
            raise RoundTimeout(f"{action} was not finished in time")


Kind = Literal["ingest", "append", "delete", "relearn", "sync", "upgrade", "undo", "accept"]

TRAINING_SETTINGS = {"epochs": 6, "batch_size": 4, "rank": 2}
_COLORS = ("red", "green", "blue", "yellow", "white", "black", "orange")
_THINGS = ("boat", "car", "bird", "lamp", "tree", "cell", "ball", "bridge", "river", "crowd")
_ACTIONS = ("turns left", "moves slowly", "stops", "falls", "rises", "crosses the road", "shines")

#: The 50 fixed queries whose answers are compared.
QUERIES = tuple(f"a {_COLORS[n % 7]} {_THINGS[n % 10]} {_ACTIONS[n % 3]}" for n in range(50))


@dataclass(frozen=True)
class Video:
    """A video in an operation: its ID, the number of its clip file, and its captions."""

    id: str
    number: int
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """A change to the library; a relearning learns the appended videos of its domain."""

    kind: Kind
    domain: str
    videos: tuple[Video, ...] = ()
    deleted: tuple[str, ...] = ()  # IDs; for an append, of videos to delete right after it is acknowledged
    into: str = ""  # domain that a relearning creates


@dataclass
class _Plan:
    """Tracks each domain's videos while the rounds are planned."""

    rng: random.Random
    numbers: Iterator[int] = field(default_factory=itertools.count)
    trained: dict[str, list[str]] = field(default_factory=dict)
    appended: dict[str, list[str]] = field(default_factory=dict)

    def ingest(self, domain: str, count: int) -> Operation:
        videos = self._videos(domain, count)
        self.trained[domain] = [video.id for video in videos]
        return Operation("ingest", domain, videos)

    def append(self, domain: str, count: int, *, delete_first: bool = False) -> Operation:
        videos = self._videos(domain, count)
        remaining = videos[1:] if delete_first else videos
        self.appended.setdefault(domain, []).extend(video.id for video in remaining)
        return Operation("append", domain, videos, deleted=(videos[0].id,) if delete_first else ())

    def delete(self, domain: str, count: int) -> Operation:
        trained = self.trained[domain]
        chosen = self.rng.sample(trained, count)
        self.trained[domain] = [video for video in trained if video not in chosen]
        return Operation("delete", domain, deleted=tuple(chosen))

    def relearn(self, domain: str) -> Operation:
        into = f"{domain}-relearned"
        self.trained[into] = self.appended.pop(domain)
        return Operation("relearn", domain, into=into)

    def sync(self, domain: str, count: int) -> Operation:
        return Operation("sync", domain, self._videos(domain, count))

    def _videos(self, domain: str, count: int) -> tuple[Video, ...]:
        return tuple(
            Video(f"{domain}-{number}", number, (self._caption(domain), self._caption(domain)))
            for number in itertools.islice(self.numbers, count)
        )

    def _caption(self, domain: str) -> str:
        color, subject, action = map(self.rng.choice, (_COLORS, _THINGS, _ACTIONS))
        return f"a {color} {subject} {action} in {domain}"


def plan_rounds(seed: int, *, large: int = 70) -> list[tuple[Operation, ...]]:
    """Plan the rounds of operations, from an empty library. Above 64 videos, a domain is probed in several chunks.

    A round learns at most one domain, and upgrades have rounds of their own: what is learned depends on what was
    learned before.
    """
    plan = _Plan(random.Random(seed))
    return [
        (plan.ingest("notes", 8),),  # whose captions may be edited
        (plan.ingest("harbor", 10),),
        (plan.ingest("street", large), plan.append("harbor", 4)),
        (Operation("upgrade", "harbor"),),
        (Operation("undo", "harbor"), plan.append("street", 4)),
        (plan.sync("garden", 5), plan.append("harbor", 3, delete_first=True), plan.delete("street", 3)),
        (plan.relearn("harbor"), plan.append("street", 3), plan.delete("harbor", 2)),
        (plan.ingest("kitchen", 10), plan.append("street", 3)),
        (plan.sync("garden", 3), plan.append("kitchen", 4, delete_first=True), plan.append("harbor", 3)),
        (plan.ingest("desert", 8), plan.delete("street", 4), plan.append("kitchen", 3)),
        (plan.relearn("street"), plan.append("desert", 3), plan.delete("kitchen", 2)),
        (Operation("upgrade", "kitchen"),),
        (Operation("accept", "kitchen"), plan.append("kitchen", 3)),
    ]


_INTERVAL = 0.25
_TIMEOUT = 20.0
_DEPTH = 20
_TOLERANCE = 2e-6  # of a score: batches of different sizes round float32 sums differently
_SETTLE_SECONDS = 5.0  # in which routing profiles follow edits, which takes about one
NO_CATALOG = "503 with Retry-After"

Answer = list[tuple[str, float]]


class FailedSearch(NamedTuple):
    """A search without an answer: start and end on the monotonic clock, and the response or the connection error."""

    started: float
    ended: float
    reason: str


class SearchStream:
    """Sends the fixed queries to an API in turn, each on a new connection, until it is stopped."""

    def __init__(self, url: str, api: str = "api", headers: Mapping[str, str] | None = None) -> None:
        self.api = api
        self.count = 0
        self.cached = 0  # answers from the read cache, marked, while the catalog is unreachable
        self.failed: list[FailedSearch] = []
        self._url, self._headers = url, headers
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
            if reason := self._send(text):
                self.failed.append(FailedSearch(started, time.monotonic(), reason))
            self.count += 1

    def _send(self, text: str) -> str:
        """Send a search; returns why it has no complete answer, or an empty text."""
        fields: dict[str, Any] = {"params": {"q": text}, "headers": self._headers, "timeout": _TIMEOUT}
        try:
            response = httpx.get(f"{self._url}/search", trust_env=False, **fields)
        except httpx.HTTPError as error:
            return repr(error)
        if response.status_code != httpx.codes.OK:
            return f"{response.status_code} {response.text[:200]}"
        answer = response.json()
        self.cached += bool(answer.get("metadata_as_of"))
        return f"degraded: {answer['degraded']}" if answer["degraded"] else ""


class EditStream(SearchStream):
    """Sends new captions of videos that nothing else changes until it is stopped; then it restores them."""

    def __init__(self, url: str, api: str, headers: Mapping[str, str], videos: Sequence[Video]) -> None:
        super().__init__(url, api, headers)
        self.lost: list[str] = []  # acknowledged edits that were lost
        self._videos = videos
        self._captions = {video.id: [video.captions] for video in videos}  # one of which a video has
        # Otherwise, the kernel would send a request that timed out as soon as its network is back.
        options = [(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))]
        transport = httpx.HTTPTransport(socket_options=options)
        self._http = httpx.Client(
            transport=transport, base_url=url, headers=headers, timeout=_REQUEST_SECONDS
        )

    def stop(self) -> None:
        super().stop()
        for video in self._videos:
            captions = tuple(self._http.get(f"/videos/{video.id}").json()["captions"])
            if captions not in self._captions[video.id]:
                self.lost.append(f"{video.id} has {captions}, none of {self._captions[video.id]}")
            self.lost += filter(None, [self._edit(video, video.captions)])
        self._http.close()
        time.sleep(_SETTLE_SECONDS)

    def _send(self, text: str) -> str:
        number = self.count % len(self._videos)
        return self._edit(self._videos[number], (f"{text}, edit {time.monotonic_ns()}",))

    def _edit(self, video: Video, captions: tuple[str, ...]) -> str:
        self._captions[video.id].append(captions)  # without an answer, it may have taken effect
        try:
            response = self._http.patch(f"/videos/{video.id}", json={"captions": captions})
        except httpx.HTTPError as error:
            return repr(error)
        if response.is_success:
            self._captions[video.id] = [captions]
            return ""
        is_refused = response.status_code == 503 and "Retry-After" in response.headers
        return NO_CATALOG if is_refused else f"edit: {response.status_code} {response.text[:200]}"


def read_answers(url: str, headers: Mapping[str, str] | None = None, root: str = "") -> list[Answer]:
    """Read an API's answers to the fixed queries: URIs below a root and scores; synced videos have random IDs."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=headers) as http:
        answers = []
        for text in QUERIES:
            response = http.get("/search", params={"q": text, "k": _DEPTH, "routes": "all"})
            response.raise_for_status()
            results: list[dict[str, Any]] = response.json()["results"]
            answers.append([(result["uri"].removeprefix(root), float(result["score"])) for result in results])
    return answers


def compare_answers(expected: Sequence[Answer], answers: Sequence[Answer]) -> list[str]:
    """Find the differences between two lists of answers: scores by rank, and videos unless their scores are equal.

    Each difference begins with the number of its query; consecutive numbers suggest that the state changed while the
    answers were read.
    """
    differences = []
    for number, (query, wanted, given) in enumerate(zip(QUERIES, expected, answers, strict=True), 1):
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
