"""Libraries of several encoders: one ranked list, and what happens if one of them is missing or broken."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from sqlalchemy import select

from cinestrata_schemas.search import SearchQuery, SearchResult
from index.errors import StoreUnavailable
from index.index_snapshot import IndexSnapshot
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import tiny_backbone
from models.backbones.query_backbone import QueryBackbone
from models.encoders import encoder_registry
from models.encoders.query_encoder import QueryEncoder
from models.encoders.video_encoder import VideoEncoder
from models.errors import BackboneUnavailable, ReleaseError
from models.releases.release_files import write_release
from models.routing.confidence_model import ConfidenceModel, VisualScore
from service.catalog.database import session_scope
from service.catalog.domain_videos import number_edits
from service.catalog.tables import Video
from service.core.errors import Gone, Unavailable
from service.core.settings import Settings
from service.search.clip_search import ClipSearch
from service.search.engine import SearchEngine
from service.search.snapshots import generation_loader, snapshot_loading
from service.search.snapshots.snapshot_loading import load_snapshot
from tests.index.disk_faults import flip_byte
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, copy_rows

TEXTS = ["an owl on a branch", "a red taxi", "waves", "something that nobody has seen"]
BONES = ["a skull in the sand", "a tooth of a shark"]
WIDE = ConfidenceModel(
    "pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), 0.0, 240, 0.04, None, VisualScore(12.0, 0.3)
)


@pytest.fixture(scope="module")
def other() -> Backbone:
    """Backbone with other weights and another name than ``backbone``."""
    torch.manual_seed(1)
    other = tiny_backbone()
    other.name = "other"
    return other


@pytest.fixture
def loadable(backbone: Backbone, other: Backbone, monkeypatch: pytest.MonkeyPatch) -> dict[str, Backbone]:
    """The backbones that can be loaded, by name."""
    loadable = {"tiny": backbone, "other": other}

    def load(name: str, frames: int | None, **_: object) -> Backbone:
        if name not in loadable:
            raise BackboneUnavailable(f"backbone {name!r} has no weights")
        return loadable[name]

    monkeypatch.setattr(encoder_registry, "load_backbone", load)
    return loadable


@pytest.fixture
def library(configured: Settings, backbone: Backbone, loadable: dict[str, Backbone]) -> Library:
    """Birds and sea, learned on ``tiny``; bones are added by :func:`mixed`."""
    library = Library(configured, backbone, "ffa_tame", experts=2, rank=2)
    library.add_task("birds", BIRDS)
    return library


@pytest.fixture
def second(library: Library, other: Backbone) -> Library:
    """The library's other lineage, with cars; both then learn another domain in turn."""
    second = Library(library.settings, other, "zero_shot")
    second.confidence = WIDE
    second.add_task("cars", CARS)
    library.add_task("sea", SEA)
    second.add_task("bones", BONES)
    return second


def _gray_clip(_: ClipSearch, __: object, spec: FrameSpec) -> tuple[SimpleNamespace, np.ndarray]:
    """Decode no file, in place of ``ClipSearch.decode``."""
    info = SimpleNamespace(container="mp4", width=1, height=1, duration=1.0)
    return info, np.zeros((1, spec.frames, *spec.shape, 3), np.uint8)


def _search(service: SearchEngine, text: str, **fields: object) -> list[SearchResult]:
    return service.search(text, k=20, **fields).results  # type: ignore[arg-type]


def test_domains_of_two_encoders_are_ranked_in_one_list(
    library: Library, second: Library, service: SearchEngine, loadable: dict[str, Backbone]
) -> None:
    assert service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert (ready.ready, ready.tasks, ready.degraded) == (True, 4, {})
    assert ready.checks["encoders"] == "tiny (2 domains), other (2 domains)"
    snapshot = service.snapshots.current()
    assert list(snapshot.shards) == ["tsk_birds", "tsk_cars", "tsk_sea", "tsk_bones"]
    assert snapshot.release_id == library.store.manifest().release
    captions = {"birds": BIRDS, "cars": CARS, "sea": SEA, "bones": BONES}
    for text in TEXTS:
        answer = service.search(text, k=20, routes="all")
        assert {result.task for result in answer.results} == set(captions)
        assert [result.score for result in answer.results] == sorted(
            (result.score for result in answer.results), reverse=True
        )
        for result in answer.results:
            explained = service.explain(result.video_id, SearchQuery(q=text, k=20))
            number = int(result.video_id.rpartition("-")[2])
            stored = (second if result.task in ("cars", "bones") else library).stored(captions[result.task])
            (query,) = snapshot.query_vectors([(text, "pinned", result.task_id)])
            assert explained.cosine == pytest.approx(float(stored[number] @ query), abs=1e-4)
            assert explained.visual_weight == (12.0 if result.task in ("cars", "bones") else 6.25)
            assert explained.score == pytest.approx(result.score, abs=1e-4)
    # Only the lineage that was calibrated knows how sure it is.
    results = _search(service, "a red taxi")
    assert {result.task for result in results if result.confidence is not None} <= {"cars", "bones"}


def test_best_of_each_route_equals_the_best_of_all(second: Library, service: SearchEngine) -> None:
    """The upper bounds hold although the lineages' visual scores differ."""
    service.snapshots.refresh()
    for text in TEXTS:
        every = _search(service, text, routes="all")
        assert service.search(text, k=3, routes="all").results == every[:3]


def test_other_lineage_changes_no_result_within_a_domain(
    library: Library, service: SearchEngine, configured: Settings, request: pytest.FixtureRequest
) -> None:
    service.snapshots.refresh()
    pairs = [(text, "pinned", "tsk_birds") for text in TEXTS]
    vectors = service.snapshots.current().query_vectors(pairs)
    before = [[result.video_id for result in _search(service, text, task="birds")] for text in TEXTS]
    folders = {path: path.read_bytes() for path in configured.index_dir.glob("*/*/*") if path.is_file()}
    request.getfixturevalue("second")
    service.snapshots.refresh()
    after = [[result.video_id for result in _search(service, text, task="birds")] for text in TEXTS]
    assert after == before
    np.testing.assert_allclose(service.snapshots.current().query_vectors(pairs), vectors, atol=1e-6)
    restarted = SearchEngine(configured)
    restarted.snapshots.refresh()
    assert [_search(restarted, text) for text in TEXTS] == [_search(service, text) for text in TEXTS]
    assert {path: path.read_bytes() for path in folders} == folders
    restarted.close()


def test_missing_encoder_degrades_its_domains_until_it_returns(
    second: Library,
    service: SearchEngine,
    loadable: dict[str, Backbone],
    pass_retry_interval: Callable[[], None],
) -> None:
    absent = loadable.pop("other")
    assert service.snapshots.refresh()
    answer = service.search("a red taxi", k=20)
    assert {result.task for result in answer.results} == {"birds", "sea"}
    assert set(answer.degraded) == {"cars", "bones"}
    assert "backbone 'other' has no weights" in answer.degraded["cars"]
    assert service.snapshots.readiness().ready
    loadable["other"] = absent
    pass_retry_interval()
    assert service.snapshots.refresh()
    assert service.search("a red taxi").degraded == {}


@pytest.mark.slow
def test_encoders_beyond_the_memory_return_on_demand(
    second: Library, configured: Settings, loadable: dict[str, Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = SearchEngine(configured)
    expected.snapshots.refresh()
    monkeypatch.setattr(generation_loader, "_memory_limit", lambda: 0)
    service = SearchEngine(configured)
    assert service.snapshots.refresh()
    for text in TEXTS:
        assert _search(service, text) == _search(expected, text)
        caches = [lineage.query_cache for lineage in service.snapshots.current().distinct_lineages]
        assert sum(cache.opened is not None for cache in caches) == 1
    assert not service.snapshots.refresh_captions()
    service.search("an owl", task="birds")
    del loadable["other"]
    gc.collect()  # a backbone in torch refers to itself
    with pytest.raises(Unavailable, match="backbone 'other' has no weights"):
        service.search("a taxi that nobody has seen", task="cars")
    assert service.search("an owl that nobody has seen", task="birds").results
    expected.close()
    service.close()


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError("full"), RuntimeError("CUDA out of memory")], ids=repr)
def test_encoder_that_cannot_return_degrades_its_domains(
    second: Library, configured: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(generation_loader, "_memory_limit", lambda: 0)
    service = SearchEngine(configured)
    service.snapshots.refresh()
    first = service.search("a taxi", 2)
    caches = [lineage.query_cache for lineage in service.snapshots.current().distinct_lineages]
    (lost,) = (each for each in service.snapshots.current().distinct_lineages if not each.query_cache.opened)
    domains = {"tiny": {"birds", "sea"}, "other": {"cars", "bones"}}
    opened = snapshot_loading.open_query_encoder

    def open_others(backbone: QueryBackbone, *args: Any) -> QueryEncoder:
        if backbone.name == lost.backbone_name:
            assert not any(cache.opened for cache in caches), "the other encoder leaves first"
            raise error
        return opened(backbone, *args)

    monkeypatch.setattr(snapshot_loading, "open_query_encoder", open_others)
    with pytest.raises(Unavailable, match=str(error)):  # the list would lack hits
        service.search("a taxi", 2, cursor=first.next_cursor)
    answer = service.search("a bus", 20)
    assert set(answer.degraded) == domains.pop(lost.backbone_name)
    assert {result.task for result in answer.results} == set().union(*domains.values())
    with pytest.raises(Unavailable, match=str(error)):
        service.search("a bus", task=min(answer.degraded))
    assert _search(service, "a bus") == answer.results
    monkeypatch.setattr(snapshot_loading, "open_query_encoder", opened)
    assert service.snapshots.refresh()
    assert service.search("a bus").degraded == {}
    service.close()


@pytest.mark.usefixtures("second")
def test_search_answers_while_no_vector_can_be_read(service: SearchEngine) -> None:
    service.snapshots.refresh()
    snapshot = service.snapshots.current()
    for task in snapshot.shards:
        snapshot.mark_degraded(task, StoreUnavailable("no vectors"))
    assert set(service.search(TEXTS[0]).degraded) == {"birds", "cars", "sea", "bones"}


@pytest.mark.slow
def test_clip_search_keeps_no_encoder_that_left_the_memory(
    second: Library, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoders = WeakSet[VideoEncoder]()
    lineages: list[int] = []
    encode = VideoEncoder.encode

    def watched(self: VideoEncoder, *args: Any) -> torch.Tensor:
        encoders.add(self)
        gc.collect()  # a backbone in torch refers to itself
        lineages.append(len(encoders))
        return encode(self, *args)

    monkeypatch.setattr(VideoEncoder, "encode", watched)
    monkeypatch.setattr(ClipSearch, "decode", _gray_clip)
    monkeypatch.setattr(generation_loader, "_memory_limit", lambda: 0)
    service = SearchEngine(configured)
    service.snapshots.refresh()
    for _ in range(2):
        answer = service.clips.search(
            service.snapshots.current(), BytesIO(), SearchQuery(q="a clip", k=20), None
        )
        assert {result.task for result in answer.results} == {"birds", "cars", "sea", "bones"}
    assert set(lineages) == {1}
    service.close()


def test_earlier_release_restricts_every_lineage(
    second: Library, backbone: Backbone, other: Backbone
) -> None:
    snapshot = IndexSnapshot.open(second.store)
    backbones = {"tiny": backbone, "other": other}
    tasks = ["tsk_birds", "tsk_cars", "tsk_sea", "tsk_bones"]
    whole = load_snapshot(snapshot, lambda release: backbones[release.backbone])
    for number, release in enumerate(second.store.manifest().releases, 1):
        earlier = load_snapshot(snapshot, lambda release: backbones[release.backbone], release, other=whole)
        assert (list(earlier.shards), earlier.degraded) == (tasks[:number], {})
        pairs = [(text, "pinned", task) for text in TEXTS for task in earlier.shards]
        np.testing.assert_allclose(earlier.query_vectors(pairs), whole.query_vectors(pairs), atol=1e-6)


@pytest.mark.parametrize(
    ("domain", "file", "lost"),
    [
        ("birds", "routing.safetensors", {"birds"}),
        ("cars", "routing.safetensors", {"cars"}),
        ("sea", "weights.safetensors", {"birds", "sea"}),
    ],
)
def test_broken_release_degrades_no_domain_of_the_other_lineage(
    second: Library, service: SearchEngine, domain: str, file: str, lost: set[str]
) -> None:
    release = second.store.manifest().shards[f"tsk_{domain}"].release
    flip_byte(second.store.release_folder(release) / file)
    assert service.snapshots.refresh()
    answer = service.search("a red taxi", k=20)
    assert {name.removeprefix("tsk_") for name in answer.degraded} == lost
    assert {result.task for result in answer.results} == {"birds", "cars", "sea", "bones"} - lost


def _upgrade_birds(second: Library, count: int = len(BIRDS)) -> str:
    """Replace the shard of the first birds by one of the other encoder, and return the ID of its release."""
    second.method.begin_task("tsk_birds", "birds")
    second.method.end_task()
    second.method.record_task("tsk_birds", "birds", BIRDS)
    state = replace(second.method.release(), confidence=second.confidence)
    before = second.store.manifest().shards["tsk_birds"]
    with second.store.staging() as staged:
        write_release(staged, state, parent=second.before)
        release = second.store.adopt_release(staged)
    shard = second.store.write_shard(
        task="tsk_birds",
        release=release.id,
        fingerprint=state.fingerprint,
        ids=IndexSnapshot.open(second.store).shard("tsk_birds", fingerprint=before.fingerprint).ids[:count],
        vectors=second.features(BIRDS[:count]),
    )
    second.store.publish(release=release, shards=[shard], upgrades=True, partial=count < len(BIRDS))
    return release.id


def test_cursor_from_before_an_upgrade_is_gone(
    library: Library, second: Library, service: SearchEngine
) -> None:
    service.snapshots.refresh()
    first = service.search("an owl", 2)
    in_domain = service.search("an owl", 2, task="birds")
    _upgrade_birds(second)
    assert service.snapshots.refresh()
    for answer, fields in ((first, {}), (in_domain, {"task": "birds"})):
        with pytest.raises(Gone, match="no longer served"):
            service.search("an owl", 2, cursor=answer.next_cursor, **fields)  # type: ignore[arg-type]
    whole = _search(service, "an owl")
    after = service.search("an owl", 2)
    library.add_task("bays", SEA)
    assert service.snapshots.refresh()
    assert after.results + service.search("an owl", 20, cursor=after.next_cursor).results == whole


def test_refused_upgrade_degrades_its_domain(
    second: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgraded = _upgrade_birds(second)

    def check(folder: Path, release: str, *_: object) -> None:
        if release == upgraded:
            raise ReleaseError("it answers otherwise")

    monkeypatch.setattr(snapshot_loading, "check_self_test", check)
    assert service.snapshots.refresh()
    answer = service.search("an owl", k=20)
    assert set(answer.degraded) == {"birds"}
    assert {result.task for result in answer.results} == {"cars", "sea", "bones"}
    with pytest.raises(Unavailable, match="the served release is refused"):
        service.search("an owl", task="birds")


def test_partly_upgraded_domain_is_searched_as_one(
    library: Library,
    second: Library,
    service: SearchEngine,
    configured: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service.snapshots.refresh()
    before = {text: _search(service, text, routes="all") for text in TEXTS}
    with session_scope(write=True) as session:
        videos = session.scalars(select(Video).where(Video.task_id == "tsk_birds")).all()
        for number, video in enumerate(videos):
            video.extra, video.duration = {"shore": f"{number // 2}"}, 1.0 + number
        number_edits(session, [video.vector_id for video in videos])
    _upgrade_birds(second, 1)
    assert service.snapshots.refresh()
    snapshot = service.snapshots.current()
    ready = service.snapshots.readiness()
    assert (ready.tasks, ready.degraded, len(snapshot.shards)) == (4, {}, 5)
    restarted = SearchEngine(configured)
    restarted.snapshots.refresh()
    copy_rows(restarted)
    birds = [f"birds-{number}" for number in range(3)]
    stored = {video: second.stored(BIRDS)[0] if video == "birds-0" else None for video in birds}
    stored |= {f"birds-{number}": library.stored(BIRDS)[number] for number in (1, 2)}
    for text in TEXTS:
        answer = service.search(text, k=20, routes="all", facets=True)
        assert {result.video_id for result in answer.results} == {r.video_id for r in before[text]}
        assert restarted.search(text, k=20, routes="all").results == answer.results
        assert [route.task_id for route in answer.routing].count("tsk_birds") == 1
        assert sum(route.weight for route in answer.routing) == pytest.approx(1)
        for task in ("birds", "tsk_birds"):
            assert {result.video_id for result in _search(service, text, task=task)} == set(birds)
        for video in birds:
            explained = service.explain(video, SearchQuery(q=text, k=20))
            key = "tsk_birds" if video == "birds-0" else next(each for each in snapshot.shards if "~" in each)
            (query,) = snapshot.query_vectors([(text, "pinned", key)])
            assert (explained.task, explained.task_id) == ("birds", "tsk_birds")
            assert explained.cosine == pytest.approx(float(stored[video] @ query), abs=1e-4)
            (result,) = (each for each in answer.results if each.video_id == video)
            assert (result.task, result.task_id) == ("birds", "tsk_birds")
            assert explained.score == pytest.approx(result.score, abs=1e-4)
        pages, cursor = list[str](), None
        while not pages or cursor:
            page = service.search(text, k=2, cursor=cursor)
            pages, cursor = pages + [each.video_id for each in page.results], page.next_cursor
        assert pages == [each.video_id for each in _search(service, text)]
    facets = {facet.field: {each.value: each.count for each in facet.values} for facet in answer.facets}
    assert facets["task"]["birds"] == 3
    for where, wanted in (({"shore": "0"}, birds[:2]), ({"shore": "1"}, birds[2:])):
        assert {result.video_id for result in _search(service, "an owl", where=where)} == set(wanted)
    assert _search(service, "owl on a branch", task="birds")[0].video_id == "birds-2"
    similar = service.search_similar("birds-1", k=5)
    assert [each.video_id for each in similar.results] == ["birds-2"]
    assert (similar.task_id, list(similar.not_compared)) == ("tsk_birds", ["birds"])
    assert {each.text for each in service.caption_video("birds-1", k=5).captions} == set(BIRDS)
    monkeypatch.setattr(ClipSearch, "decode", _gray_clip)
    clip = service.clips.search(snapshot, BytesIO(), SearchQuery(q="a clip", k=20, task="birds"), 5)
    assert ({each.video_id for each in clip.results}, clip.searched) == (set(birds), ["birds"])
    restarted.close()
    with session_scope() as session:
        deleted = session.scalars(select(Video.vector_id).where(Video.id == "birds-1")).one()
    second.store.delete([deleted], task="tsk_birds")
    assert service.snapshots.refresh()
    assert {each.video_id for each in _search(service, "an owl", task="birds")} == {"birds-0", "birds-2"}
    second.store.undo_upgrade("tsk_birds")
    assert service.snapshots.refresh()
    for text in TEXTS:
        assert _search(service, text, task="birds")[0].task_id == "tsk_birds"
        assert [r.video_id for r in _search(service, text, task="sea")] == [
            r.video_id for r in before[text] if r.task == "sea"
        ]
