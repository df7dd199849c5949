"""Search by example: nearest stored vectors, and only among comparable encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cinestrata_schemas.search import SimilarVideosResponse
from index.errors import StoreUnavailable
from index.shards.faiss_vector_store import FaissShard
from models.backbones.backbone import Backbone
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.errors import Conflict, InvalidInput, NotFound, Unavailable
from service.core.settings import Settings
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, Served, learn_birds_and_cars

VIDEOS = {"birds": [*BIRDS, BIRDS[0]], "cars": CARS, "sea": SEA}


def learn(library: Library) -> None:
    """Add birds and sea embedded by one encoder, cars by another, and videos without a vector."""
    library.add_task("birds", VIDEOS["birds"])
    encoder = library.method.release().fingerprint
    with pytest.MonkeyPatch.context() as other:
        other.setattr("trainer.methods.base.video_fingerprint", lambda *_: "f" * 64)
        library.add_task("cars", VIDEOS["cars"])
    library.add_task("sea", VIDEOS["sea"])
    shards = library.store.manifest().shards
    assert [shards[f"tsk_{name}"].fingerprint == encoder for name in VIDEOS] == [True, False, True]
    with session_scope(write=True) as session:
        birds = session.get_one(Task, "tsk_birds")
        late = Task(
            id="tsk_late",
            position=9,
            name="late",
            method="zero_shot",
            state="queued",
            created_at=birds.created_at,
        )
        session.add(late)
        session.flush()
        for task, video, status in (
            ("tsk_late", "waiting", "accepted"),
            ("tsk_birds", "broken", "rejected"),
            ("tsk_birds", "forgotten", "accepted"),
        ):
            session.add(
                Video(id=video, task_id=task, uri="x.mp4", status=status, reason="The file is empty.")
            )


def _expected(library: Library, video: str, tasks: list[str]) -> list[tuple[str, float]]:
    """Return the expected results, computed with NumPy from the stored vectors."""
    name, _, number = video.partition("-")
    vector = library.stored(VIDEOS[name])[int(number)]
    scored = [
        (f"{task}-{n}", float(row @ vector))
        for task in tasks
        for n, row in enumerate(library.stored(VIDEOS[task]))
        if f"{task}-{n}" != video
    ]
    return sorted(scored, key=lambda one: -one[1])


def _same(answer: SimilarVideosResponse, expected: list[tuple[str, float]]) -> None:
    assert [result.video_id for result in answer.results] == [video for video, _ in expected]
    assert [result.score for result in answer.results] == pytest.approx([s for _, s in expected], abs=1e-5)
    assert [result.rank for result in answer.results] == list(range(1, len(expected) + 1))
    assert [result.uri for result in answer.results] == [f"{v.replace('-', '/')}.mp4" for v, _ in expected]


@pytest.mark.parametrize("video", ["birds-1", "cars-2", "sea-0"])
def test_nearest_videos_of_the_own_task(shared: Served, video: str) -> None:
    library, service = shared
    name = video.partition("-")[0]
    answer = service.search_similar(video)
    _same(answer, _expected(library, video, [name]))
    assert (answer.task, answer.searched, answer.not_compared) == (name, [name], {})
    _same(service.search_similar(video, k=1), _expected(library, video, [name])[:1])
    second = answer.results[1].score
    _same(service.search_similar(video, min_score=second), _expected(library, video, [name])[:2])


def test_similar_search_omits_the_video_itself_but_not_its_copies(shared: Served) -> None:
    _, service = shared
    for video, copy in (("birds-0", "birds-3"), ("birds-3", "birds-0")):
        best = service.search_similar(video).results[0]
        assert best.video_id == copy
        assert best.score == pytest.approx(1, abs=1e-3)  # stored vectors are rounded


def test_other_tasks_are_searched_only_where_the_encoder_is_equal(shared: Served) -> None:
    library, service = shared
    answer = service.search_similar("birds-1", 100, "all")
    _same(answer, _expected(library, "birds-1", ["birds", "sea"]))
    assert answer.searched == ["birds", "sea"]
    assert list(answer.not_compared) == ["cars"]
    assert "encoder ffffffffffff" in answer.not_compared["cars"]
    with pytest.raises(Conflict, match="Videos of other domains can't be compared with those of 'cars'"):
        service.search_similar("cars-0", scope="all")


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"k": 0}, "k"),
        ({"k": 10**6}, "k"),
        ({"k": 10**5000}, "k"),
        ({"scope": "everything"}, "scope"),
        ({"min_score": float("nan")}, "min_score"),
    ],
    ids=["none", "a million", "a monster", "scope", "nan"],
)
def test_invalid_field_is_reported(shared: Served, parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        shared[1].search_similar("birds-0", **parameters)
    assert [error.field for error in refused.value.errors] == [field]


@pytest.mark.parametrize(
    ("video", "error", "message"),
    [
        ("nobody", NotFound, "no video 'nobody'"),
        ("broken", Conflict, "was rejected. The file is empty."),
        ("waiting", Conflict, "its task is not finished"),
        ("forgotten", Conflict, "was not available when its task was indexed"),
    ],
)
def test_video_without_a_vector_is_a_conflict_with_a_reason(
    shared: Served, video: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        shared[1].search_similar(video)


def test_broken_shard_and_empty_library_are_unavailable(
    configured: Settings, backbone: Backbone, service: SearchEngine
) -> None:
    service.snapshots.refresh()
    with pytest.raises(Unavailable, match="no domain has been learned yet"):
        service.search_similar("birds-0")
    library = Library(configured, backbone, "zero_shot")
    learn_birds_and_cars(library)
    shard = library.store.shard_folder(library.store.manifest().shards["tsk_birds"].id)
    np.save(shard / "ids.npy", np.arange(3))
    (shard / "vectors.faiss").write_bytes(b"")
    service.snapshots.refresh()
    with pytest.raises(Unavailable, match="'birds' can't be searched"):
        service.search_similar("birds-0")
    answer = service.search_similar("cars-0", scope="all")
    assert list(answer.degraded) == ["birds"]
    assert service.search_similar("cars-0").degraded == {}


def test_shard_that_breaks_while_served_is_unavailable_and_set_aside(
    configured: Settings, backbone: Backbone, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(configured, backbone, "zero_shot")
    learn_birds_and_cars(library)
    service.snapshots.refresh()

    def lost(self: Any, ids: Any) -> Any:
        raise StoreUnavailable("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(FaissShard, "vectors", lost)
        with pytest.raises(Unavailable, match="'birds' can't be searched: the store does not answer"):
            service.search_similar("birds-0")
    assert list(service.snapshots.degraded().values()) == ["the store does not answer"]
    assert service.search_similar("cars-0").results
