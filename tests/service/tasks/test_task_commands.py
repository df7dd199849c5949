"""Creation, cancellation and retry of tasks, and validation of requests."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import RetrySpec, TaskDetails, TaskSpec
from media.scenes import scene_files
from media.scenes.scene_domains import Scene
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease
from service.catalog.operation_tables import IdempotencyKey, LeaseRow
from service.catalog.tables import Task, Video
from service.core import request_limits
from service.core.errors import (
    Conflict,
    IdempotencyInFlight,
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    Unavailable,
)
from service.core.settings import Settings, settings
from service.tasks import commands, lifecycle
from service.tasks.commands import SAMPLE_DOMAIN, SAMPLE_VIDEOS, create_sample_task
from service.tasks.idempotency import CreateOutcome, TaskRequest
from service.tasks.ingestion_checks import normalize_caption, validate_spec

# For tests of statements that other tests run on both databases.
ON_SQLITE = pytest.mark.parametrize("catalog", ["sqlite"], indirect=True)
Post = Callable[..., TaskDetails]
CONFIGURED_ONLY = (
    "transformers:google/siglip2-base-patch16-224",
    "transformers:/srv/model",
    "open_clip:ViT-B-32/models/x.pt",
)


def _spec(**fields: Any) -> TaskSpec:
    return TaskSpec.model_validate({"name": "birds", "videos": [{"uri": "a.mp4"}], **fields})


def _wrong_fields(spec: TaskSpec) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        commands.create_task(spec)
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(Task)) == 0
        assert session.scalar(select(func.count()).select_from(Video)) == 0
    return {error.field: f"{error.message} {error.hint}" for error in caught.value.errors}


def test_posted_task_is_stored_completely(catalog: Settings, make_file: Callable[[str], Path]) -> None:
    make_file("a.mp4")
    video = {
        "uri": "a.mp4",
        "captions": ["  a bird 🐦  flies ", "طائر يطير", "e\u0301te\u0301"],
        "id": "bird-1",
        "split": "test",
        "metadata": {"place": ["Zürich", 1.5]},
    }
    chosen = {"lexical_penalty": 8, "carry": False, "max_steps": None}
    made = commands.create_task(_spec(settings=chosen, videos=[video])).task
    assert (made.state, made.position, made.method, made.counts.videos) == ("queued", 1, "analytic", 1)
    assert made.settings == chosen
    assert commands.get_task(made.id) == made
    assert commands.list_tasks() == [made]
    with session_scope() as session:
        stored = session.scalars(select(Video)).one()
    assert stored.captions == ["a bird 🐦 flies", "طائر يطير", "été"]
    assert (stored.id, stored.split, stored.extra) == ("bird-1", "test", video["metadata"])
    assert [e.data["state"] for e in commands.events_after(made.id)] == ["queued"]


class TestBadInput:
    """Each refused by field, with nothing stored."""

    @pytest.fixture(autouse=True)
    def _catalog(self, sqlite_catalog: Settings, make_file: Callable[[str], Path]) -> None:
        make_file("a.mp4")

    def test_unknown_method_is_refused(self) -> None:
        assert "ffa_tame, finetune, " in _wrong_fields(_spec(method="magic"))["method"]

    @pytest.mark.parametrize(
        ("backbone", "message"),
        [
            ("vit", "backbone 'vit' is unknown"),
            ("open_clip:ViT-B-99/openai", "ViT-B-99"),
            ("open_clip:ViT-B-32/..", "Only the server's configuration can name a model"),
            *((name, "Only the server's configuration can name a model") for name in CONFIGURED_ONLY),
        ],
    )
    def test_backbone_that_requests_cannot_name_is_refused(self, backbone: str, message: str) -> None:
        assert message in _wrong_fields(_spec(backbone=backbone, method="analytic"))["backbone"]

    @pytest.mark.parametrize("backbone", CONFIGURED_ONLY)
    def test_backbone_in_use_is_accepted(self, backbone: str) -> None:
        commands.create_task(_spec())
        with session_scope(write=True) as session:
            session.execute(update(Task).values(backbone=backbone))
        spec = _spec(backbone=backbone, method="analytic").model_copy(update={"name": "owls"})
        assert commands.create_task(spec).task.backbone == backbone

    def test_configured_backbone_is_accepted(
        self, tmp_path: Path, settings_factory: Callable[..., Settings]
    ) -> None:
        backbone = CONFIGURED_ONLY[-1]
        settings_factory(tmp_path, backbone=backbone)
        assert commands.create_task(_spec(backbone=backbone)).task.backbone == backbone

    @pytest.mark.parametrize(
        "uri",
        [
            *("../secret.mp4", "/etc/passwd", "file:///etc/passwd", "x/../../y", "http://host/a.mp4"),
            *("upload://../../etc/passwd", "upload:///etc/passwd", "upload://file:///etc/passwd"),
            *("none.mp4", ".", "a\0.mp4", "a\n.mp4", "x" * 4000, "a.mp4/b"),
        ],
    )
    def test_paths_outside_the_media_root_are_refused(self, uri: str) -> None:
        wrong = _wrong_fields(_spec(videos=[{"uri": "a.mp4"}, {"uri": uri}]))
        assert list(wrong) == ["videos[1].uri"]
        assert str(settings().media_root) not in wrong["videos[1].uri"].replace(uri, "")

    def test_only_links_to_a_file_outside_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "secret.mp4").write_bytes(b"x")
        os.symlink(tmp_path / "secret.mp4", settings().media_root / "link.mp4")
        os.symlink(tmp_path, settings().media_root / "folder")
        os.symlink(settings().media_root / "a.mp4", settings().media_root / "inside.mp4")
        for uri in ("link.mp4", "folder/secret.mp4"):
            assert list(_wrong_fields(_spec(videos=[{"uri": uri}]))) == ["videos[0].uri"]
        assert commands.create_task(_spec(videos=[{"uri": "inside.mp4"}])).task.state == "queued"

    def test_invalid_captions_are_refused_with_their_index(self) -> None:
        videos = [{"uri": "a.mp4", "captions": ["fine", "x" * 5000, "  ", "bell\a"]}]
        wrong = _wrong_fields(_spec(videos=videos))
        assert "5000 characters" in wrong["videos[0].captions[1]"]
        assert "2000" in wrong["videos[0].captions[1]"]
        assert "blank" in wrong["videos[0].captions[2]"]
        assert "control character" in wrong["videos[0].captions[3]"]
        assert "videos[0].captions[0]" not in wrong

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("captions", ["x"] * 65),
            *(("id", value) for value in (".", "..")),
            *(("metadata", {"key": value}) for value in (float("nan"), float("inf"), "\0", "\ud800", 2**70)),
            *(("metadata", {"key": value}) for value in ({"\0": 1}, [[[[]]] * 2] * 9000)),
            ("metadata", json.loads('{"down":' * 200 + "1" + "}" * 200)),
        ],
    )
    def test_invalid_field_of_a_video_is_named(self, field: str, value: Any) -> None:
        """IDs that URLs cannot contain, and metadata without a JSON form, among others."""
        wrong = _wrong_fields(_spec(videos=[{"uri": "a.mp4", field: value}]))
        assert list(wrong) == [f"videos[0].{field}"]

    def test_duplicate_ids_name_both_videos(self) -> None:
        videos = [{"uri": "a.mp4", "id": "one"}, {"uri": "a.mp4"}, {"uri": "a.mp4", "id": "one"}]
        wrong = _wrong_fields(_spec(videos=videos))
        assert "videos[0].id" in wrong["videos[2].id"]

    def test_numbers_and_sizes_are_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert list(_wrong_fields(_spec(settings={"seed": "x" * 5000}))) == ["settings.seed", "settings"]
        assert len(_wrong_fields(_spec(videos=[{"uri": "none.mp4"}] * 500))) == 20, "errors are limited, too"
        monkeypatch.setattr(request_limits, "MAX_VIDEOS_PER_TASK", 2)
        assert list(_wrong_fields(_spec(videos=[{"uri": "a.mp4"}] * 3))) == ["videos"]


@pytest.mark.slow
@given(st.text(max_size=300))
@hypothesis_settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_caption_is_kept_or_refused_by_name(sqlite_catalog: Settings, caption: str) -> None:
    (settings().media_root / "a.mp4").write_bytes(b"x")
    spec = TaskSpec.model_construct(
        name="any", method=None, settings=None, videos=_spec(videos=[{"uri": "a.mp4"}]).videos
    )
    spec.videos[0].captions = [caption]
    try:
        stored = validate_spec(spec).videos[0].captions[0]
    except InvalidInput as error:
        fields = [e.field for e in error.errors]
    else:
        assert stored.strip() == stored != ""
        assert normalize_caption(stored) == stored
        stored.encode()
        return
    assert fields == ["videos[0].captions[0]"]


class TestIdempotency:
    """A request with an idempotency key is executed once."""

    @pytest.fixture(autouse=True)
    def _catalog(self, catalog: Settings, make_file: Callable[[str], Path]) -> None:
        make_file("a.mp4")

    def test_equal_request_is_replayed_and_another_is_refused(self) -> None:
        first = commands.create_task(_spec(), idempotency_key="k", caller="me")
        again = commands.create_task(_spec(), idempotency_key="k", caller="me")
        assert (first.replayed, again.replayed) == (False, True)
        assert again.task == first.task
        with pytest.raises(IdempotencyMismatch):
            commands.create_task(_spec(name="other"), idempotency_key="k", caller="me")
        other = commands.create_task(_spec(name="other"), idempotency_key="k", caller="you")
        assert not other.replayed, "each caller has their own keys"
        assert len(commands.list_tasks()) == 2

    def test_refused_or_crashed_request_stores_neither_task_nor_key(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(InvalidInput):
            commands.create_task(_spec(method="magic"), idempotency_key="k")

        def crash(*_: object) -> None:
            raise SystemExit

        with monkeypatch.context() as patched:
            patched.setattr("service.tasks.idempotency.TaskRequest.settle", crash)
            with pytest.raises(SystemExit):
                commands.create_task(_spec(), idempotency_key="k")
        assert commands.list_tasks() == []
        assert not commands.create_task(_spec(), idempotency_key="k").replayed

    def test_concurrent_equal_requests_create_one_task(self) -> None:
        def create(_: int) -> str:
            try:
                outcome = commands.create_task(_spec(), idempotency_key="k", caller="me")
            except IdempotencyInFlight:
                return "wait"
            return "replayed" if outcome.replayed else "made"

        with ThreadPoolExecutor(6) as threads:
            outcomes = list(threads.map(create, range(6)))
        assert outcomes.count("made") == 1
        assert len(commands.list_tasks()) == 1

    @ON_SQLITE
    @pytest.mark.parametrize("key", ["", "x" * 256, "two words", "ключ"])
    def test_invalid_keys_are_refused(self, key: str) -> None:
        with pytest.raises(InvalidInput, match="Idempotency-Key"):
            commands.create_task(_spec(), idempotency_key=key)


class TestCancelAndRetry:
    """Cancellation and retry."""

    def test_waiting_task_is_cancelled_immediately_and_a_finished_one_never(
        self, catalog: Settings, post: Post, post_probed: Post
    ) -> None:
        for view in (post("queued"), post_probed("probed")):
            assert commands.cancel_task(view.id).state == "cancelled"
            assert commands.cancel_task(view.id).state == "cancelled"
        view = post_probed("finished")
        claim = lifecycle.claim_training(view.id, "worker")
        assert claim is not None
        claim.fail("no good")
        with pytest.raises(Conflict, match="failed"):
            commands.cancel_task(view.id)

    def test_retry_with_another_method_drops_settings_and_checkpoints(
        self, sqlite_catalog: Settings, post: Post
    ) -> None:
        task = post("birds", method="finetune", settings={"epochs": 3}).id
        commands.cancel_task(task)
        checkpoint = settings().checkpoints_dir / task / "state.pt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_bytes(b"of another method")
        for wrong, field in (
            ({"method": "none"}, "method"),
            ({"settings": {"seed": "x" * 5000}}, "settings"),
            ({"settings": {"epoch": 3}}, "settings.epoch"),  # of the method that the task has
        ):
            with pytest.raises(InvalidInput) as caught:
                commands.retry_task(task, RetrySpec.model_validate(wrong))
            assert caught.value.errors[0].field.startswith(field)
        with pytest.raises(InvalidInput) as caught:
            commands.retry_task(task, RetrySpec(method="strata", settings={"rank": 0, "epoch": 3}))
        assert [error.field for error in caught.value.errors] == ["settings.rank", "settings.epoch"]
        assert checkpoint.exists()
        retried = commands.retry_task(task, RetrySpec(method="strata"))
        assert (retried.state, retried.method, retried.settings) == ("queued", "strata", {})
        assert not checkpoint.exists()

    def test_retry_resets_the_task_and_moves_it_to_the_end_of_the_queue(
        self, catalog: Settings, post: Post
    ) -> None:
        first, second = post("first"), post("second")
        claim = lifecycle.claim_probing(first.id, "worker")
        assert claim is not None
        with session_scope(write=True) as session:
            video = session.scalars(select(Video).where(Video.task_id == first.id).limit(1)).one()
            video.status, video.reason = "rejected", "broken"
        claim.fail("too many bad videos", "replace them")
        assert [r.reason for r in commands.get_task(first.id).rejected] == ["broken"]
        again = commands.retry_task(first.id)
        assert (again.state, again.attempts, again.error, again.error_hint) == ("queued", 0, None, None)
        assert again.rejected == []
        assert again.position > second.position
        assert again.finished_at is None
        assert lifecycle.claim_probing(first.id, "worker") is not None

    def test_unfinished_task_cannot_be_retried(
        self, sqlite_catalog: Settings, post: Post, post_probed: Post
    ) -> None:
        for view in (post("queued"), post_probed("probed")):
            with pytest.raises(Conflict, match=r"queued|probing"):
                commands.retry_task(view.id)
        for act in (commands.get_task, commands.cancel_task, commands.retry_task, commands.events_after):
            with pytest.raises(NotFound, match="tsk_none"):
                act("tsk_none")


def test_drawn_videos_become_a_task(sqlite_catalog: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path, scene: Scene) -> Path:
        path = folder / scene.file_name
        path.write_bytes(scene.id.encode())
        return path

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scene_files, "write_scene", fail)
    with pytest.raises(Unavailable, match="No space left"):
        create_sample_task()
    assert commands.list_tasks() == []
    monkeypatch.setattr(scene_files, "write_scene", write)  # drawing takes seconds
    task = create_sample_task().task
    assert (task.name, task.state, task.counts.videos) == (SAMPLE_DOMAIN, "queued", SAMPLE_VIDEOS)
    with session_scope() as session:
        videos = session.query(Video).all()
        assert {video.split for video in videos} == {"train", "test"}
        assert all(len(video.captions) == 3 for video in videos)
    stored = list(sqlite_catalog.uploads_dir.rglob("*.mp4"))
    assert len(stored) == SAMPLE_VIDEOS
    assert all(path.read_text() == path.stem for path in stored)
    monkeypatch.setattr(scene_files, "write_scene", None)  # a repetition draws nothing
    with pytest.raises(Conflict, match=SAMPLE_DOMAIN):
        create_sample_task()


REQUEST = TaskRequest("k", "me")


def _expire() -> timedelta:
    """Let the lease of the only unanswered key expire; returns its duration."""
    with session_scope(write=True) as session:
        row = session.scalars(select(LeaseRow).where(LeaseRow.id.endswith(" k"))).one()
        created = select(IdempotencyKey.created_at).where(IdempotencyKey.key == "k")
        lease = row.until - session.scalars(created).one()
        row.until = now(session) - timedelta(seconds=1)
    return lease


def test_key_of_a_dead_process_is_free_after_its_lease(catalog: Settings) -> None:
    for is_expired in (False, True):
        assert not is_expired or 1 <= _expire() / timedelta(seconds=catalog.lease_seconds) < 2
        assert isinstance(REQUEST.reserve("hash"), Lease)
        with pytest.raises(IdempotencyInFlight) as caught:
            REQUEST.reserve("hash")
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (409, "1")
        with pytest.raises(IdempotencyMismatch):
            REQUEST.reserve("other hash")


def test_only_the_first_of_two_overlapping_requests_stores_its_response(
    catalog: Settings, make_file: Callable[[str], Path]
) -> None:
    """A process that stops for longer than the lease fails when it continues, and its transaction stores nothing."""
    make_file("a.mp4")
    task = commands.create_task(_spec(), idempotency_key="answered", caller="me").task
    assert isinstance(REQUEST.reserve("hash"), Lease)  # the process that stops
    _expire()
    assert isinstance(REQUEST.reserve("hash"), Lease)
    with session_scope(write=True) as session:
        REQUEST.settle(session, task)
    with pytest.raises(IdempotencyInFlight), session_scope(write=True) as session:
        REQUEST.settle(session, task)
    assert REQUEST.reserve("hash") == task.model_dump(mode="json")


def test_request_in_execution_renews_its_key_until_its_end(
    tmp_path: Path, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_factory(tmp_path, lease_seconds=0.3)
    renewed = threading.Event()
    renew = Lease.renew

    def observe(lease: Lease, session: Session) -> bool:
        is_held = renew(lease, session)
        if is_held:
            renewed.set()
        return is_held

    def fail_late() -> CreateOutcome:
        assert renewed.wait(30)
        raise NotFound("late")

    monkeypatch.setattr(Lease, "renew", observe)
    for _ in range(2):  # the first request frees the key
        with pytest.raises(NotFound):
            REQUEST.create_once("content", fail_late)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lease")]
