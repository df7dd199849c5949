"""Appends in the queue and in the catalog, and publications whose worker dies between manifest and catalog."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import pytest
import redis
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import AppendSpec, TaskDetails
from index.files.manifest_format import SegmentEntry
from index.shard_store import ShardStore
from service.catalog import readings
from service.catalog.database import now, session_scope
from service.catalog.tables import FileRemoval, Recall, Release, Shard, Task, Video
from service.core.errors import Conflict, IdempotencyMismatch, NotFound
from service.core.settings import Settings, settings
from service.library import library_listing
from service.library.deletion import delete_task, delete_videos
from service.storage import library_files
from service.storage.video_files import remove_deleted_files
from service.tasks import commands, lifecycle
from service.tasks.idempotency import CreateOutcome
from service.tasks.lifecycle.state_machine import reject
from tests.audited_changes import audit_entries
from tests.catalog_rows import mark_learned

# For tests of statements that other tests run on both databases.
ON_SQLITE = pytest.mark.parametrize("catalog", ["sqlite"], indirect=True)
Post = Callable[..., TaskDetails]
Rejected = tuple[TaskDetails, Path]


def _claimed(claim: lifecycle.Claim | None) -> lifecycle.Claim:
    assert claim is not None
    return claim


@pytest.fixture
def domain(catalog: Settings, post_probed: Post) -> str:
    """ID of a learned domain; its rows exist, but no files of the index."""
    return mark_learned(post_probed("birds", read="speech,screen").id)


@pytest.fixture
def append(make_file: Callable[..., Any]) -> Post:
    """``append(domain, name)``: a stored append of one file that is no video."""

    def make(domain: str, name: str = "new", **fields: Any) -> TaskDetails:
        make_file(f"{name}.mp4")
        spec = AppendSpec.model_validate({"videos": [{"uri": f"{name}.mp4", "id": name}]})
        return commands.append_videos(domain, spec, **fields).task

    return make


@pytest.fixture
def append_probed(append: Post) -> Post:
    """Like ``append``, with an accepted video of the given content."""

    def make(domain: str, name: str = "new", content: str = "f" * 64) -> TaskDetails:
        view = append(domain, name)
        claim = _claimed(lifecycle.claim_probing(view.id, "prober"))
        with session_scope(write=True) as session:
            (video,) = session.query(Video).filter(Video.task_id == view.id)
            video.status, video.content_hash = "accepted", content
        claim.finish_probing(counts={"videos": 1, "accepted": 1}, held_out=None)
        return commands.get_task(view.id)

    return make


@ON_SQLITE
def test_repeated_request_does_not_append_again(
    domain: str, make_file: Callable[..., Any], append: Post, post_probed: Post
) -> None:
    """Whatever happened to the append and its domain meanwhile; another body or domain is refused."""
    other = mark_learned(post_probed("other").id, 2)
    make_file("new.mp4")
    spec = AppendSpec.model_validate({"videos": [{"uri": "new.mp4"}]})

    def send(task: str = domain, body: AppendSpec = spec) -> CreateOutcome:
        return commands.append_videos(task, body, idempotency_key="k")

    def send_archive(task: str = domain, content: bytes = b"video") -> CreateOutcome:
        archive = BytesIO()
        with ZipFile(archive, "w") as members:
            # Without the present time, so that both requests have the same bytes.
            members.writestr(ZipInfo("manifest.jsonl"), '{"uri": "a.mp4"}')
            members.writestr(ZipInfo("a.mp4"), content)
        archive.seek(0)
        return commands.append_archive(task, archive, "a.zip", idempotency_key="archive")

    first, packed = send(), send_archive()
    for change in ("none", "finished", "deleted"):
        with session_scope(write=True) as session:
            if change == "finished":
                session.get_one(Task, first.task.id).state = "failed"
                session.get_one(Task, packed.task.id).state = "failed"
            if change == "deleted":
                session.get_one(Task, domain).deleted_at = now(session)
        for outcome, task in ((send(), first.task), (send_archive(), packed.task)):
            assert (outcome.task.id, outcome.replayed) == (task.id, True)
    changed = AppendSpec.model_validate({"videos": [{"uri": "new.mp4", "captions": ["a cat"]}]})
    for repeat in (
        lambda: send(body=changed),
        lambda: send(other),
        lambda: send_archive(content=b"other"),
        lambda: send_archive(other),
    ):
        with pytest.raises(IdempotencyMismatch):
            repeat()
    assert len([task for task in commands.list_tasks() if task.into]) == 2
    with pytest.raises(Conflict, match="was deleted"):
        commands.append_archive(domain, BytesIO(b""), "a.zip", idempotency_key="new")
    assert list(settings().uploads_dir.iterdir()) == [settings().uploads_dir / packed.task.id]


def test_appends_and_trainings_do_not_wait_for_each_other(
    domain: str, append_probed: Post, post_probed: Post
) -> None:
    first, second = append_probed(domain, "a"), append_probed(domain, "b")
    training = post_probed("cars")
    assert lifecycle.claim_training(training.id, "trainer") is not None
    assert lifecycle.claim_training(first.id, "trainer") is None
    assert lifecycle.claim_append(training.id, "worker") is None
    assert lifecycle.claim_append(second.id, "worker") is not None
    assert lifecycle.claim_append(first.id, "worker") is not None


def test_message_of_a_due_append_is_sent_again(
    with_broker: redis.Redis, post_probed: Post, append_probed: Post
) -> None:
    domain = mark_learned(post_probed("birds").id)
    view, training = append_probed(domain), post_probed("cars")
    with_broker.flushall()
    assert lifecycle.send_due() == (view.id, training.id)


def _publish_append(view: TaskDetails) -> int:
    """Publish an append, and return the number of its videos that were rejected then."""
    claim = _claimed(lifecycle.claim_append(view.id, "worker"))
    with claim, claim.appending() as publication:
        publication.complete({"count": 3, "bytes": 10})
        return len(publication.rejected)


def test_publication_moves_the_videos_and_rejects_content_of_the_domain(
    domain: str, append_probed: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two appends with the same content may be probed before one of them is published."""
    monkeypatch.setattr(readings, "available_sources", lambda _: {"speech": "not installed", "screen": None})
    view, same = append_probed(domain), append_probed(domain, "b")
    assert _publish_append(view) == 0
    reading = commands.get_task(domain).reading
    assert reading is not None
    assert reading.remaining == 1  # what is appended to a domain that was never read
    done, target = commands.get_task(view.id), commands.get_task(domain)
    assert (done.state, done.counts.appended, done.finished_at is not None) == ("ready", 1, True)
    assert (target.counts.videos, target.counts.appended) == (3, 1)
    with session_scope() as session:
        video = session.query(Video).filter(Video.id == "new").one()
        assert (video.task_id, video.effective_split) == (domain, "appended")
        assert session.query(Shard).count() == 0
    assert _publish_append(same) == 1
    rejected = commands.get_task(same.id)
    assert rejected.state == "ready"
    assert [video.reason for video in rejected.rejected] == ["same content as new.mp4"]


@pytest.fixture
def rejected_upload(domain: str, append_probed: Post) -> Rejected:
    """An append in which the only video, an upload, is rejected as undecodable; and the file of the video."""
    view = append_probed(domain, "new")
    file = settings().uploads_dir / "tsk_0123456789abcdef" / "new.mp4"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no video")
    with session_scope(write=True) as session:
        video = session.query(Video).filter(Video.id == "new").one()
        video.uri = f"upload://{file.relative_to(settings().uploads_dir)}"
        reject(session, video, "no video", is_final=True)
    return view, file


def test_rejected_upload_is_removed_once_its_task_is_ready(rejected_upload: Rejected) -> None:
    view, file = rejected_upload
    preview = library_files.thumbnail_path("new")
    preview.parent.mkdir(parents=True, exist_ok=True)
    preview.touch()
    assert remove_deleted_files() == {}
    assert file.exists(), "the task has not ended"
    _publish_append(view)
    assert file.exists(), "files are removed after the commit"
    assert remove_deleted_files() == {}  # as the maintenance does after a kill
    assert not file.parent.exists()
    assert not preview.exists()
    assert remove_deleted_files() == {}
    with session_scope() as session:
        assert session.query(FileRemoval).count() == 0
    assert [video.reason for video in commands.get_task(view.id).rejected] == ["no video"]
    with pytest.raises(NotFound, match="a rejected video's upload is removed"):
        library_listing.stream_path("new")


@ON_SQLITE
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_rejected_upload_of_a_task_that_ends_is_removed_and_a_retry_leaves_it_rejected(
    rejected_upload: Rejected, state: str
) -> None:
    view, file = rejected_upload
    claim = _claimed(lifecycle.claim_append(view.id, "worker"))
    if state == "failed":
        claim.fail("The disk is full.", "Free space.")
    else:
        commands.cancel_task(view.id)
        with claim, claim.appending():
            pytest.fail("nothing may be published")
    assert commands.get_task(view.id).state == state
    retried = commands.retry_task(view.id)
    assert [video.reason for video in retried.rejected] == ["no video"]
    assert (retried.state, retried.counts.videos, retried.counts.rejected) == ("queued", 1, 1)
    assert remove_deleted_files() == {}
    assert file.exists(), "the task has not ended again"
    commands.cancel_task(view.id)
    assert remove_deleted_files() == {}
    assert not file.exists()


def _video_of(session: Session, task_id: str) -> Video:
    video = session.query(Video).filter(Video.task_id == task_id).first()
    assert video is not None
    return video


@ON_SQLITE
@pytest.mark.parametrize("name", ["accepted", "pending", "rejected in a queued task", "link"])
def test_rejected_upload_stays_while_another_video_needs_it(
    rejected_upload: Rejected, post: Post, name: str
) -> None:
    view, file = rejected_upload
    other = post("other")
    (settings().media_root / "link.mp4").symlink_to(file)
    with session_scope(write=True) as session:
        video = _video_of(session, other.id)
        video.uri = "link.mp4" if name == "link" else f"uploads/{file.relative_to(settings().uploads_dir)}"
        video.status = {"link": "accepted"}.get(name, name.split()[0])
        video.content_hash, video.bytes = "c" * 64, file.stat().st_size
        session.get_one(Task, other.id).state = "queued" if name.startswith("rejected") else "ready"
    _publish_append(view)
    assert remove_deleted_files() == {}
    assert file.exists()


@ON_SQLITE
def test_rejected_video_of_a_ready_task_does_not_keep_the_file_of_another(
    rejected_upload: Rejected, post: Post
) -> None:
    """The last video that needs the file is deleted."""
    view, file = rejected_upload
    other = post("other")
    with session_scope(write=True) as session:
        video = _video_of(session, other.id)
        video.id, video.uri = "other", f"upload://{file.relative_to(settings().uploads_dir)}"
        session.get_one(Task, other.id).state = "failed"
    _publish_append(view)
    remove_deleted_files()
    delete_videos(["other"])
    assert not file.exists()


def test_publication_into_a_deleted_domain_fails(domain: str, append_probed: Post) -> None:
    view = append_probed(domain)
    claim = _claimed(lifecycle.claim_append(view.id, "worker"))
    with session_scope(write=True) as session:
        task = session.get_one(Task, domain)
        task.deleted_at = now(session)
    with claim, claim.appending():
        pytest.fail("nothing may be published")
    done = commands.get_task(view.id)
    assert (done.state, "was deleted" in (done.error or "")) == ("failed", True)


class Died(BaseException):
    """Simulated end of the process."""


def _staged(store: ShardStore, task_id: str, number: int) -> tuple[Any, SegmentEntry]:
    folder = store.stage()
    (folder / "release.json").write_text(f'{{"after": "{task_id}"}}')
    release = store.adopt_release(folder)
    rows = {"ids": np.array([number, number + 1]), "vectors": np.eye(4, dtype=np.float32)[:2]}
    shard = store.write_shard(task=task_id, release=release.id, fingerprint="f" * 64, **rows)
    return release, shard


def _facts(release: Any, shard: SegmentEntry, *recalls: tuple[str, Recall]) -> dict[str, Any]:
    of_release = {"method": "ffa_tame", "backbone": "tiny", "kind": "tame", "fingerprint": "f" * 64}
    of_shard = {name: getattr(shard, name) for name in ("id", "fingerprint", "count", "dim", "bytes")}
    return {
        "release": Release(id=release.id, bytes=release.bytes, **of_release),
        "shard": Shard(release_id=shard.release, **of_shard),
        "recalls": recalls,
        "trained": True,
    }


def _recall(task_id: str, r1: float, **more: Any) -> tuple[str, Recall]:
    facts = {"mode": "latest", "gallery": "local", "queries": 10, "medr": 1.0, "meanr": 1.0}
    return task_id, Recall(**facts, r1=r1, r5=r1, r10=r1, **more)


def _publish(
    task_id: str, number: int, *recalls: tuple[str, Recall], meanwhile: Callable[[], object] = lambda: None
) -> int | None:
    """Publish a task like a worker, and return its order; ``meanwhile`` is called after the measurement."""
    store = ShardStore(settings().index_dir)
    claim = _claimed(lifecycle.claim_training(task_id, "worker"))
    release, shard = _staged(store, task_id, number)
    meanwhile()
    with claim.publishing() as publication:
        store.publish(release=release, shards=[shard])
        publication.complete(**_facts(release, shard, *recalls))
    return commands.get_task(task_id).learned_order


def test_published_task_is_ready(
    catalog: Settings, post_probed: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "available_sources", lambda _: dict.fromkeys(readings.MODEL_SOURCES))
    first, second = post_probed("first", read="speech,screen"), post_probed("second", read="off")
    assert _publish(first.id, 1, _recall(first.id, 0.9), _recall(first.id, 0.3, release_order=0)) == 1
    assert _publish(second.id, 3, _recall(first.id, 0.7), _recall(second.id, 0.8)) == 2
    view = commands.get_task(second.id)
    assert (view.state, view.learned_order, view.trained) == ("ready", 2, True)
    assert view.release == ShardStore(settings().index_dir).manifest().release
    assert view.finished_at is not None
    reading = commands.get_task(first.id).reading
    assert reading is not None
    assert (reading.total, reading.remaining, view.reading) == (2, 2, None)
    entry = audit_entries(action=["task.publish"])[-1]
    assert (entry.target, entry.details["release"]) == (second.id, view.release)
    with session_scope() as session:
        cells = session.execute(select(Recall.release_order, Recall.task_order, Recall.r1)).all()
    assert sorted(map(tuple, cells)) == [(0, 1, 0.3), (1, 1, 0.9), (2, 1, 0.7), (2, 2, 0.8)]


def test_recall_column_of_a_deleted_task_is_removed_permanently(catalog: Settings, post_probed: Post) -> None:
    """This includes a deletion after a worker has measured the task and before it publishes."""

    def cells() -> list[tuple[int, int]]:
        with session_scope() as session:
            return sorted((r.release_order, r.task_order) for r in session.scalars(select(Recall)))

    first, second = post_probed("first").id, post_probed("second").id
    _publish(first, 1, _recall(first, 0.5))
    with session_scope(write=True) as session:
        session.get_one(Task, first).counts = {"accepted": 3, "videos": 3}
    assert cells() == [(1, 1)]
    recalls = [_recall(task, 0.5) for task in (first, second)]
    _publish(second, 5, *recalls, meanwhile=lambda: delete_task(first))
    assert cells() == [(2, 2)]
    third = post_probed("third").id
    _publish(third, 9, *(_recall(task, 0.5) for task in (first, second, third)))
    assert cells() == [(2, 2), (3, 2), (3, 3)]


def test_publication_interrupted_after_the_manifest_is_completed(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    store = ShardStore(settings().index_dir)
    claim = _claimed(lifecycle.claim_training(view.id, "dies"))
    release, shard = _staged(store, view.id, 1)
    with suppress(Died), claim.publishing():
        store.publish(release=release, shards=[shard])
        raise Died
    assert view.id in store.manifest().shards
    assert commands.get_task(view.id).state == "probing"

    with pytest.raises(Conflict, match="already published"):
        commands.cancel_task(view.id)
    expire(view.id)
    assert lifecycle.reconcile().recovered == (view.id,)

    assert _publish(view.id, 1, _recall(view.id, 0.5)) == 1
    assert store.manifest().generation == 1
    assert commands.get_task(view.id).state == "ready"


def test_published_task_cannot_fail_or_be_cancelled(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    _claimed(lifecycle.claim_training(view.id, "dies"))
    commands.cancel_task(view.id)
    store = ShardStore(settings().index_dir)
    release, shard = _staged(store, view.id, 1)
    store.publish(release=release, shards=[shard])
    with session_scope(write=True) as session:
        session.get_one(Task, view.id).attempts = 99
    expire(view.id)
    assert lifecycle.reconcile().recovered == (view.id,)
    assert _publish(view.id, 1) == 1


def test_cancellation_before_the_manifest_takes_effect(sqlite_catalog: Settings, post_probed: Post) -> None:
    view = post_probed()
    claim = _claimed(lifecycle.claim_training(view.id, "worker"))
    commands.cancel_task(view.id)
    with claim, claim.publishing():
        pytest.fail("published a cancelled task")
    assert commands.get_task(view.id).state == "cancelled"


@pytest.mark.slow
def test_completion_is_idempotent(catalog: Settings, post_probed: Post) -> None:
    view = post_probed()
    store = ShardStore(settings().index_dir)
    claim = _claimed(lifecycle.claim_training(view.id, "worker"))
    release, shard = _staged(store, view.id, 1)
    with claim.publishing() as publication:
        publication.complete(**_facts(release, shard, _recall(view.id, 0.4)))
        publication.complete(**_facts(release, shard, _recall(view.id, 0.5)))
    with session_scope() as session:
        assert session.scalars(select(Recall.r1)).all() == [0.5]
        assert session.scalar(select(func.count()).select_from(Release)) == 1
        assert session.scalar(select(func.count()).select_from(Shard)) == 1
