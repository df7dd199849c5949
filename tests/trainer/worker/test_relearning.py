"""Relearning: appended videos become a domain of their own, and no search returns a video twice in the meantime."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, select, update

from cinestrata_schemas.tasks import RelearnSpec
from cinestrata_schemas.videos import Cue, FeedbackSpec, VideoPatch
from index.words.text_analysis import parse_query
from models.backbones.backbone import Backbone
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import Conflict, NotFound
from service.core.list_parameters import FeedbackFilters
from service.core.settings import settings
from service.library.deletion import delete_task, delete_videos
from service.library.library_listing import get_video
from service.library.video_changes import edit_video, give_feedback, list_feedback
from service.search.library_words import LibraryWords
from service.storage.library_files import thumbnail_path
from service.storage.video_files import register_removals, remove_deleted_files
from service.tasks import commands, probing_completion
from service.tasks.task_storage import relearn_appended_videos
from tests.claimed_probing import probe
from tests.shared_folders import restore_or_make
from tests.trainer.worker.library_state import (
    call_before,
    catalog_vector_ids,
    learn,
    open_store,
    post_append,
    require_same_videos,
    run_job,
    shard_vectors,
)
from trainer.worker import append_job, learning_job
from trainer.worker.catalog_reader import load_clips

pytestmark = pytest.mark.usefixtures("library")

COLORS = ("red", "blue", "green")


@pytest.fixture
def grown_task(learned_task: str, saved_libraries: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The task ``day`` with three appended videos, ``new-<color>``."""

    def grow() -> None:
        append = post_append(learned_task, {color: color for color in COLORS}, ["the {} video"])
        with monkeypatch.context() as patch:
            patch.setattr(append_job, "MIN_CAPTIONS", 2)
            append_job.run_append_job(append)

    restore_or_make(saved_libraries / "grown", grow)
    domain = next(task for task in commands.list_tasks() if task.into is None)
    assert domain.counts.appended == len(COLORS)
    return domain.id


def relearn(domain: str, name: str | None = None) -> str:
    """Return the ID of a probed task that relearns the appended videos of a domain."""
    return probe(relearn_appended_videos(domain, RelearnSpec(name=name)).task.id).id


def find_words(words: LibraryWords, query: str) -> list[int]:
    """Return the vector IDs of the videos whose texts contain a word."""
    return sorted(set(words.current().lookup(parse_query(query)).videos.tolist()))


def require_consistent_library(domain: str, task: str, moved: set[str]) -> None:
    """Check that the moved videos are in the new domain alone, under their IDs, and that index and catalog agree."""
    assert set(catalog_vector_ids(task)) == moved
    assert not set(catalog_vector_ids(domain)) & moved
    require_same_videos(domain, task)


@pytest.mark.slow
def test_new_domain_takes_over_the_appended_videos(grown_task: str) -> None:
    before = catalog_vector_ids(grown_task)
    drift = commands.get_task(grown_task).progress.drift
    assert drift is not None
    assert (drift.domain_captions, drift.appended_captions) == (2, 3)
    assert not drift.relearn  # so few captions are no proof
    said = edit_video("new-red", VideoPatch(transcript=[Cue(start=0.5, end=1, text="look, red")])).transcript
    assert [task.progress.drift for task in commands.list_tasks() if task.into] == [drift]
    task = relearn(grown_task)
    copies = set(catalog_vector_ids(task))
    assert set(shard_vectors(grown_task)) == set(before.values())
    generation = open_store().manifest().generation
    view = run_job(task)
    assert (view.state, view.error, view.name, view.relearns) == ("ready", None, "day 2", grown_task)
    assert view.counts.accepted == len(COLORS)
    assert commands.get_task(grown_task).counts.appended == 0
    (append,) = (task for task in commands.list_tasks() if task.into)
    assert commands.get_task(grown_task).progress.drift is None
    assert append.progress.drift is None
    # The originals leave with the same publication.
    assert open_store().manifest().generation == generation + 1
    require_consistent_library(grown_task, task, {f"new-{color}" for color in COLORS})
    with session_scope() as session:
        video = session.scalars(select(Video).where(Video.id == "new-red")).one()
        assert (video.captions, video.copy_of) == (["the red video"], None)
    assert get_video("new-red").transcript == said
    assert thumbnail_path("new-red").exists()
    assert not any(thumbnail_path(copy).exists() for copy in copies)


def test_confirmed_texts_of_training_videos_are_learned_and_move_to_the_copies(
    grown_task: str, backbone: Backbone
) -> None:
    for color in COLORS:
        for text, verdict in ((f"a {color} kite", "right"), ("a boat", "wrong")):
            spec = {"text": text, "video_id": f"new-{color}", "verdict": verdict}
            give_feedback(FeedbackSpec.model_validate(spec))
    task = relearn(grown_task)
    clips = load_clips(task, backbone)
    assert {clip.split for clip in clips} > {"train"}
    for clip in clips:
        (color,) = [color for color in COLORS if f"the {color} video" in clip.captions]
        assert list(clip.captions) == [f"the {color} video", f"a {color} kite"][: 1 + (clip.split == "train")]
    words = LibraryWords()
    assert run_job(task).state == "ready"
    copies = np.array(sorted(catalog_vector_ids(task).values()))
    words.prepare(copies)
    assert find_words(words, "kite") == copies.tolist()
    assert find_words(words, "boat") == []
    assert words.texts.feedback.negative_videos(["boats"])[0].tolist() == copies.tolist()
    assert {entry.video_id for entry in list_feedback(FeedbackFilters(text="kite")).feedback} == {
        f"new-{c}" for c in COLORS
    }


def test_unfinished_relearning_is_returned_again(grown_task: str) -> None:
    first = relearn_appended_videos(grown_task, RelearnSpec(name="colors"))
    again = relearn_appended_videos(grown_task, RelearnSpec())
    assert (first.replayed, again.replayed) == (False, True)
    assert again.task.id == first.task.id
    assert learn(probe(first.task.id).id).name == "colors"
    with pytest.raises(Conflict, match="no appended videos"):
        relearn_appended_videos(grown_task, RelearnSpec())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before learning", "during learning"])
def test_video_deleted_meanwhile_does_not_return(
    grown_task: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = relearn(grown_task)
    if moment == "before learning":
        delete_videos(["new-red"])
    else:
        call_before(monkeypatch, learning_job, "evaluate_task", lambda: delete_videos(["new-red"]))
    assert run_job(task).state == "ready"
    require_consistent_library(grown_task, task, {"new-blue", "new-green"})


def test_copy_whose_original_vanished_is_not_published(grown_task: str) -> None:
    """A deletion was interrupted between the original and its copy; its uploaded file is deleted after the copy."""
    file = settings().uploads_dir / "tsk_0123456789abcdef" / "red.mp4"
    file.parent.mkdir(parents=True)
    shutil.copyfile(settings().media_root / "new" / "red.mp4", file)
    with session_scope(write=True) as session:
        uri = f"upload://{file.relative_to(settings().uploads_dir)}"
        session.execute(update(Video).where(Video.id == "new-red").values(uri=uri))
    task = relearn(grown_task)
    open_store().delete([catalog_vector_ids(grown_task)["new-red"]])
    with session_scope(write=True) as session:
        register_removals(session, Video.id == "new-red")
        session.execute(delete(Video).where(Video.id == "new-red"))
    remove_deleted_files()
    assert file.exists(), "the copy is learned from it"
    assert run_job(task).state == "ready"
    require_consistent_library(grown_task, task, {"new-blue", "new-green"})
    remove_deleted_files()
    assert not file.exists()


@pytest.mark.slow
def test_rejected_copy_leaves_its_original(grown_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a video is gone, so the new domain cannot learn from it."""
    monkeypatch.setattr(probing_completion, "MAX_BAD_SHARE", 1)
    (settings().media_root / "new" / "red.mp4").unlink()
    view = run_job(relearn(grown_task))
    assert (view.state, view.counts.rejected) == ("ready", 1)
    assert "new-red" in catalog_vector_ids(grown_task)
    assert {"new-blue", "new-green"} < set(catalog_vector_ids(view.id))
    assert set(shard_vectors(grown_task)) == set(catalog_vector_ids(grown_task).values())


def test_edits_and_deletions_before_the_reassignment_are_kept(grown_task: str) -> None:
    """A copy is not edited but its original; a deleted copy is not learned, and its original stays."""
    task = relearn(grown_task)
    originals = {vector_id: video for video, vector_id in catalog_vector_ids(grown_task).items()}
    with session_scope() as session:
        copies = {
            originals[copy_of]: video
            for video, copy_of in session.execute(
                select(Video.id, Video.copy_of).where(Video.task_id == task)
            )
        }
    patch = VideoPatch(captions=["a red square"], metadata={"place": "park"})
    with pytest.raises(Conflict, match="Edit 'new-red'"):
        edit_video(copies["new-red"], patch)
    # A search process knows the copies before the catalog: the manifest is replaced before the commit.
    words = LibraryWords()
    words.prepare(np.array(sorted(catalog_vector_ids(task).values())))
    edit_video("new-red", patch)
    assert find_words(words, "square") == []
    assert delete_videos([copies["new-blue"]]).deleted == [copies["new-blue"]]
    learn(task)
    video = get_video("new-red")
    assert (video.task_id, video.captions, video.metadata) == (task, ["a red square"], {"place": "park"})
    require_consistent_library(grown_task, task, {"new-red", "new-green"})
    assert find_words(words, "park") == find_words(words, "square") == [catalog_vector_ids(task)["new-red"]]
    assert "new-blue" in catalog_vector_ids(grown_task)


def test_cancelled_relearning_changes_nothing(grown_task: str) -> None:
    before = shard_vectors(grown_task)
    task = relearn(grown_task)
    commands.cancel_task(task)
    delete_task(task)
    assert set(shard_vectors(grown_task)) == set(before)
    assert set(catalog_vector_ids(grown_task).values()) == set(before)
    assert thumbnail_path("new-red").exists()
    assert learn(relearn(grown_task)).counts.accepted == len(COLORS)


def test_deleted_domain_ends_its_relearning(grown_task: str) -> None:
    task = relearn(grown_task)
    delete_task(grown_task)
    assert catalog_vector_ids(task) == {}
    view = run_job(task)
    assert view.state == "failed"
    assert "deleted" in (view.error or "")


def test_refusals_name_the_reason(grown_task: str, post_videos: Any) -> None:
    with pytest.raises(NotFound):
        relearn_appended_videos("tsk_none", RelearnSpec())
    with pytest.raises(Conflict, match=r"already exists\. Choose another name\.$"):
        relearn_appended_videos(grown_task, RelearnSpec(name="day"))
    waiting = post_videos("night", videos=2)
    with pytest.raises(Conflict, match="is probing"):
        relearn_appended_videos(waiting, RelearnSpec())
    delete_task(grown_task)
    with pytest.raises(Conflict, match="deleted"):
        relearn_appended_videos(grown_task, RelearnSpec())
