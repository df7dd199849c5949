"""Appends in the queue and in the catalog, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import pytest
import redis
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import AppendSpec, TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.tables import FileRemoval, Shard, Task, Video
from service.core.errors import Conflict, IdempotencyMismatch, NotFound
from service.core.settings import Settings, settings
from service.library import video_listing
from service.library.deletion import delete_videos
from service.storage import library_paths
from service.storage.video_files import remove_deleted_files
from service.tasks import commands, lifecycle
from service.tasks.idempotency import CreateOutcome
from service.tasks.task_events import reject
from tests.catalog_rows import mark_learned

# For tests of statements that other tests run on both databases.
ON_SQLITE = pytest.mark.parametrize("catalog", ["sqlite"], indirect=True)
Post = Callable[..., TaskDetails]


@pytest.fixture
def domain(catalog: Settings, post_probed: Post) -> str:
    """ID of a learned domain; its rows exist, but no files of the index."""
    return mark_learned(post_probed("birds").id)


@pytest.fixture
def append(make_file: Callable[..., Any]) -> Callable[..., TaskDetails]:
    """``append(domain, name)``: a stored append of one file that is no video."""

    def make(domain: str, name: str = "new", **fields: Any) -> TaskDetails:
        make_file(f"{name}.mp4")
        spec = AppendSpec.model_validate({"videos": [{"uri": f"{name}.mp4", "id": name}]})
        return commands.append_videos(domain, spec, **fields).task

    return make


@pytest.fixture
def append_probed(append: Callable[..., TaskDetails]) -> Callable[..., TaskDetails]:
    """Like ``append``, with an accepted video of the given content."""

    def make(domain: str, name: str = "new", content: str = "f" * 64) -> TaskDetails:
        view = append(domain, name)
        claim = lifecycle.claim_probing(view.id, "prober")
        assert claim is not None
        with session_scope(write=True) as session:
            (video,) = session.query(Video).filter(Video.task_id == view.id)
            video.status, video.content_hash = "accepted", content
        claim.finish_probing(counts={"videos": 1, "accepted": 1}, held_out=None)
        return commands.get_task(view.id)

    return make


@ON_SQLITE
def test_repeated_request_does_not_append_again(
    domain: str, make_file: Callable[..., Any], append: Callable[..., TaskDetails], post_probed: Post
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


@ON_SQLITE
def test_refusals_name_the_reason(domain: str, append: Callable[..., TaskDetails], post: Post) -> None:
    with pytest.raises(NotFound):
        append("tsk_nobody")
    waiting = post("waiting")
    with pytest.raises(Conflict, match="is queued; videos can be appended once it is ready"):
        append(waiting.id)
    view = append(domain)
    with pytest.raises(Conflict, match=f"append to task {domain}"):
        append(view.id, "other")
    with pytest.raises(Conflict, match=r"videos\[0\]\.id: The ID 'new' belongs to a video"):
        append(domain)


def test_appends_and_trainings_do_not_wait_for_each_other(
    domain: str, append_probed: Callable[..., TaskDetails], post_probed: Post
) -> None:
    first, second = append_probed(domain, "a"), append_probed(domain, "b")
    training = post_probed("cars")
    assert lifecycle.claim_training(training.id, "trainer") is not None
    assert lifecycle.claim_training(first.id, "trainer") is None
    assert lifecycle.claim_append(training.id, "worker") is None
    assert lifecycle.claim_append(second.id, "worker") is not None
    assert lifecycle.claim_append(first.id, "worker") is not None


def test_message_of_a_due_append_is_sent_again(
    with_broker: redis.Redis, post_probed: Post, append_probed: Callable[..., TaskDetails]
) -> None:
    domain = mark_learned(post_probed("birds").id)
    view, training = append_probed(domain), post_probed("cars")
    with_broker.flushall()
    assert lifecycle.send_due() == (view.id, training.id)


def _publish_append(view: TaskDetails) -> int:
    """Publish an append, and return the number of its videos that were rejected then."""
    claim = lifecycle.claim_append(view.id, "worker")
    assert claim is not None
    with claim, claim.appending() as publication:
        publication.complete(vectors=3, size=10)
        return len(publication.rejected)


def test_publication_moves_the_videos(domain: str, append_probed: Callable[..., TaskDetails]) -> None:
    view = append_probed(domain)
    assert _publish_append(view) == 0
    done, target = commands.get_task(view.id), commands.get_task(domain)
    assert (done.state, done.counts.appended, done.finished_at is not None) == ("ready", 1, True)
    assert (target.counts.videos, target.counts.appended) == (3, 1)
    with session_scope() as session:
        video = session.query(Video).filter(Video.id == "new").one()
        assert (video.task_id, video.effective_split) == (domain, "appended")
        assert session.query(Shard).count() == 0


def test_content_of_the_domain_is_rejected_at_the_publication(
    domain: str, append_probed: Callable[..., TaskDetails]
) -> None:
    """Two appends with the same content may be probed before one of them is published."""
    views = [append_probed(domain, name) for name in ("a", "b")]
    assert [_publish_append(view) for view in views] == [0, 1]
    view = commands.get_task(views[1].id)
    assert (view.state, [video.reason for video in view.rejected]) == ("ready", ["same content as a.mp4"])


@pytest.fixture
def rejected_upload(domain: str, append_probed: Callable[..., TaskDetails]) -> tuple[TaskDetails, Path]:
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


def test_rejected_upload_is_removed_once_its_task_is_ready(rejected_upload: tuple[TaskDetails, Path]) -> None:
    view, file = rejected_upload
    preview = library_paths.thumbnail_path("new")
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
        video_listing.stream_path("new")


@ON_SQLITE
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_rejected_upload_of_a_task_that_ends_is_removed_and_a_retry_leaves_it_rejected(
    rejected_upload: tuple[TaskDetails, Path], state: str
) -> None:
    view, file = rejected_upload
    claim = lifecycle.claim_append(view.id, "worker")
    assert claim is not None
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
@pytest.mark.parametrize("state", ["failed", "cancelled", "ready"])
def test_upload_that_the_machine_may_have_spoilt_stays_for_a_retry(
    rejected_upload: tuple[TaskDetails, Path], state: str
) -> None:
    view, file = rejected_upload
    with session_scope(write=True) as session:
        session.query(Video).filter(Video.id == "new").one().is_rejection_final = False
    if state == "ready":  # there is no retry
        _publish_append(view)
    elif state == "failed":
        claim = lifecycle.claim_append(view.id, "worker")
        assert claim is not None
        claim.fail("The disk is full.", "Free space.")
    else:
        commands.cancel_task(view.id)
    assert remove_deleted_files() == {}
    assert file.exists() == (state != "ready")
    if state != "ready":
        retried = commands.retry_task(view.id)
        assert (retried.state, retried.rejected, retried.counts.rejected) == ("queued", [], 0)


@ON_SQLITE
@pytest.mark.parametrize("name", ["accepted", "pending", "rejected in a queued task", "link"])
def test_rejected_upload_stays_while_another_video_needs_it(
    rejected_upload: tuple[TaskDetails, Path], post: Post, name: str
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
    rejected_upload: tuple[TaskDetails, Path], post: Post
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


def test_publication_into_a_deleted_domain_fails(
    domain: str, append_probed: Callable[..., TaskDetails]
) -> None:
    view = append_probed(domain)
    claim = lifecycle.claim_append(view.id, "worker")
    with session_scope(write=True) as session:
        task = session.get_one(Task, domain)
        task.deleted_at = now(session)
    assert claim is not None
    with claim, claim.appending():
        pytest.fail("nothing may be published")
    done = commands.get_task(view.id)
    assert (done.state, "was deleted" in (done.error or "")) == ("failed", True)
