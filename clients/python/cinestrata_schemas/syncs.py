"""Requests and responses about registered syncs."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from cinestrata_schemas.choice_types import VanishedVideos
from cinestrata_schemas.model_types import Name, RequestModel, ResponseModel, Uri
from cinestrata_schemas.uploads import OmittedPath

MIN_SYNC_SECONDS = 60


class SyncSpec(RequestModel):
    """A domain that follows a folder of videos. Workers compare the two at an interval."""

    name: Name = Field(description="Name of the domain; it is created if it does not exist.")
    source: Uri = Field(
        description="Folder of videos below the media root or in an allowed object store, or its manifest."
    )
    every_seconds: int = Field(ge=MIN_SYNC_SECONDS, le=366 * 86_400, description="Seconds between runs.")
    vanished: VanishedVideos = Field(
        default="keep", description="Whether to keep or delete videos whose file is gone."
    )
    captions_from_names: bool = Field(
        default=False, description="Whether to use the file name as the caption of a video without captions."
    )


class SyncCounts(ResponseModel):
    """File counts of a run."""

    new: int = Field(default=0, description="Files sent for the first time.")
    changed: int = Field(default=0, description="Files sent again, because their content changed.")
    recaptioned: int = Field(default=0, description="Unchanged files whose captions were replaced.")
    unchanged: int = 0
    vanished: int = Field(default=0, description="Videos whose file is gone.")
    deleted: int = Field(default=0, description="Deleted videos: old versions and, if chosen, vanished ones.")
    rejected: int = Field(default=0, description="Previously rejected files that have not changed.")
    left_out: int = Field(
        default=0,
        description="Unusable files, such as links to other folders; their videos are not deleted.",
    )
    left_out_files: list[OmittedPath] = Field(
        default=[], description="The first left-out files, with reasons."
    )


class SyncDetails(ResponseModel):
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
    error: str | None = Field(
        description="Why the last run changed nothing or stopped; null after a success."
    )
    counts: SyncCounts | None = Field(description="Files of the last successful run.")
