"""Requests and responses about registered syncs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from cinestrata_schemas import model_types
from cinestrata_schemas.choice_types import VanishedVideos
from cinestrata_schemas.tasks import OmittedPath

MIN_SYNC_SECONDS = 60


class SyncSpec(model_types.RequestModel):
    """A domain that follows a folder of videos. Workers compare the two at an interval."""

    name: model_types.Name = Field(description="Name of the domain; it is created if it does not exist.")
    source: model_types.Uri = Field(
        description="Folder below the media root or in an object store, or a manifest."
    )
    every_seconds: int = Field(ge=MIN_SYNC_SECONDS, le=366 * 86_400, description="Seconds between runs.")
    vanished: VanishedVideos = Field(default="keep", description="What to do with videos whose file is gone.")
    captions_from_names: bool = Field(
        default=False, description="Whether to use the file name as the caption of a video without captions."
    )


class SyncCounts(model_types.ResponseModel):
    """File counts of a run."""

    new: int = Field(default=0, description="Files sent for the first time.")
    changed: int = Field(default=0, description="Files sent again, because their content changed.")
    moved: int = Field(default=0, description="Videos whose file has another name or folder.")
    recaptioned: int = Field(default=0, description="Unchanged files with other captions or subtitles.")
    unchanged: int = 0
    vanished: int = Field(default=0, description="Videos whose file is gone.")
    deleted: int = Field(default=0, description="Deleted videos whose file is gone.")
    rejected: int = Field(default=0, description="Previously rejected files that have not changed.")
    left_out: int = Field(default=0, description="Unusable files, such as links. Their videos stay.")
    left_out_files: list[OmittedPath] = Field(default=[], description="The first of them, with reasons.")
    notice: str | None = model_types.optional("What needs a person; null if nothing does.")


class SyncDetails(model_types.ResponseModel):
    """A registered sync with its last run."""

    id: str
    name: str
    source: str
    every_seconds: int
    vanished: VanishedVideos
    captions_from_names: bool
    task_id: str | None = Field(description="Task of the domain; null until it is created.")
    created_at: datetime
    next_run_at: datetime
    running: bool
    started_at: datetime | None = Field(description="Start of the last run.")
    finished_at: datetime | None = Field(description="End of the last finished run.")
    error: str | None = Field(description="Why the last run stopped; null after a success.")
    counts: SyncCounts | None = Field(description="Files of the last successful run.")


_NO_NUL = r"^[^\x00]*$"
Stored = Annotated[int, Field(ge=-(2**63), lt=2**63)] | None


class SyncedFile(model_types.RequestModel):
    """A file that a domain follows, as the last sync of its source saw it."""

    path: str | None = Field(
        min_length=1,
        max_length=4096,
        pattern=_NO_NUL,
        description="Relative to the source; null: only the key is known.",
    )
    bytes: Stored = None
    modified: Stored = model_types.optional("In nanoseconds since the epoch; null: an object.")
    changed: Stored = model_types.optional("Change of the inode, like `modified`.")
    file_id: str | None = Field(default=None, max_length=64, pattern=_NO_NUL, description="Inode or version.")
    sha256: str | None = Field(default=None, max_length=64, pattern=_NO_NUL, description="Of the content.")
    video_id: model_types.Identifier | None = model_types.optional("Null: another command added the video.")
    captions: model_types.RequestList[str] | None = model_types.optional("Captions in the source.")
    transcript: str | None = Field(default=None, max_length=64, pattern=_NO_NUL, description="Digest of it.")


class StoredFile(SyncedFile):
    """A followed file in the catalog."""

    key: str
    task_id: str
    source: str


class StoredFilePage(model_types.ResponseModel):
    """A page of followed files."""

    files: list[StoredFile]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class FollowedSource(model_types.ResponseModel):
    """A source that a domain follows."""

    task_id: str
    source: str


class SyncedFilesPatch(model_types.RequestModel):
    """Result of a sync: files to remember, keys of files to forget, and new URIs of renamed videos."""

    task_id: model_types.Identifier
    source: model_types.Uri
    files: model_types.RequestList[SyncedFile] = Field(default_factory=list, max_length=5000)
    forgotten: model_types.RequestList[model_types.Identifier] = Field(
        default_factory=list, max_length=5000, description="Keys."
    )
    renamed: dict[model_types.Identifier, model_types.Uri] = Field(
        default_factory=dict,
        max_length=5000,
        description="New URI by video ID; for an uploaded video, its new path.",
    )
