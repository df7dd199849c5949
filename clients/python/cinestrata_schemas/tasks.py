"""Requests and responses about tasks: specification, progress and events, and the preview of an upload."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Base64Bytes, Field

from cinestrata_schemas.choice_types import HeldOut, Split, TaskState
from cinestrata_schemas.model_types import (
    Identifier,
    Name,
    Open,
    ReadSources,
    RequestList,
    RequestModel,
    RequestSettings,
    ResponseModel,
    Scalar,
    ShownUri,
    Uri,
    optional,
)
from cinestrata_schemas.problems import Action, ProblemField
from cinestrata_schemas.videos import MAX_CUES, Cue


class VideoSpec(RequestModel):
    """A video of a new task."""

    uri: Uri = Field(description="Path below the media root, or file, s3, gs, http or https URI.")
    captions: RequestList[str] = Field(default_factory=list, description="Captions of the video.")
    transcript: RequestList[Cue] = Field(
        default_factory=list,
        max_length=MAX_CUES,
        description="Timed texts: subtitles, or captions for parts of the video. Searched as words, but not learned.",
    )
    id: Identifier | None = optional("ID of the video; generated if omitted.")
    split: Split | None = optional("Split of the video; test videos are held out for evaluation.")
    replaces: Identifier | None = optional(
        "For an append: ID of the video of which this is a new version, or to which this file was moved. Once "
        "published, this one has its ID, captions, metadata, transcript and feedback."
    )
    metadata: dict[str, Any] | None = optional(
        "Metadata returned with the video. Searches can filter by strings, numbers, booleans and lists of strings."
    )


class TaskSpec(RequestModel):
    """A domain of videos to learn and index."""

    name: Name
    method: str | None = optional("Learning method; the server's default if omitted.")
    settings: RequestSettings | None = optional("Method settings.")
    backbone: str | None = optional(
        "Encoder of frames and texts; if omitted, the server's setting, or else that of the newest domain."
    )
    read: ReadSources | None = optional(
        "What to read from the videos: `off`, or some of `file`, `location`, `speech` and `screen`, separated by "
        "commas; the server's setting if omitted. Appended videos are read in the same way."
    )
    videos: RequestList[VideoSpec] = Field(min_length=1)


class AppendSpec(RequestModel):
    """Videos to append to the shard of a learned domain."""

    videos: RequestList[VideoSpec] = Field(min_length=1)


class RetrySpec(RequestModel):
    """Changes to a retried task; without any, it keeps its method, settings and backbone."""

    method: str | None = optional("Another method, with the settings given here or its defaults.")
    settings: RequestSettings | None = optional("Settings that replace the task's.")
    backbone: str | None = optional("Another backbone.")


class RelearnSpec(RequestModel):
    """A new domain that learns the appended videos of a domain."""

    name: Name | None = optional("Name of the new domain; derived from the domain's name if omitted.")


class UpgradeSpec(RequestModel):
    """Backbone, method and settings of an upgrade; by default, it uses the backbone of new domains."""

    backbone: str | None = optional("Encoder of frames and texts.")
    method: str | None = optional("Learning method; the domain's if omitted and the backbone permits it.")
    settings: RequestSettings | None = optional("Method settings; the domain's if its method stays.")
    partial: bool = Field(
        default=False,
        description="Whether videos whose files are gone stay as they are; if false, they fail the upgrade.",
    )


class Drift(ResponseModel):
    """Recall on captions of appended videos, and on captions of the domain.

    Both are searched in the domain's shard, with its pinned encoder.
    """

    k: int = Field(description="Depth of the recall: the video is among the first k.")
    domain: float = Field(description="Recall@k of the domain's captions, 0..1.")
    appended: float = Field(description="Recall@k of the appended videos' captions, 0..1.")
    domain_captions: int
    appended_captions: int
    learned: bool = Field(
        default=False,
        description="Whether the domain's captions were learned, because it has fewer than 10 others. Such captions "
        "are found more often, so the whole interval must be above 0.1.",
    )
    low: float = Field(description="Lower end of the 99 % confidence interval of domain − appended.")
    high: float = Field(description="Upper end of the interval.")
    relearn: bool = Field(
        description="Whether a new domain is recommended: domain − appended is at least 0.1, and both the interval "
        "and an exact test rule out chance. See POST /tasks/{id}/relearn."
    )


class UpgradeOutcome(ResponseModel):
    """What a published upgrade changed in its domain."""

    status: Open[Literal["undoable", "accepted", "undone"]]
    release: str = Field(description="Release before the upgrade, with its method, settings and backbone.")
    method: str
    settings: dict[str, Scalar]
    backbone: str | None = None
    r1_before: float | None = optional("Recall@1 within the domain before, 0..1; null if not measured.")
    r1_after: float | None = optional("Recall@1 within the domain after the upgrade.")
    queries: int | None = optional("Captions that measured the recall after the upgrade.")
    remaining: int = Field(
        default=0,
        description="Videos that a partial upgrade could not read: they stay as they were, and are not in the recall.",
    )


class TaskProgress(ResponseModel):
    """Progress of a task's current stage. ``fraction`` is 0..1."""

    stage: str
    fraction: float = 0.0
    done: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    videos_per_second: float | None = None
    peak_memory: int | None = optional(
        "Peak memory in bytes that the worker has used for the task: tensors on a GPU, otherwise its process; null "
        "before the first report."
    )
    outages: int | None = optional("Consecutive attempts that ended with an unavailable source.")
    unmeasured: str | None = optional("For a ready task: why the recall matrix has no row for its release.")
    drift: Drift | None = optional(
        "For a ready append, and for its domain: how well the domain's encoder finds the appended videos; null with "
        "too few captions."
    )
    upgrade: UpgradeOutcome | None = optional("For a ready upgrade: what it changed.")


class ReadingSpec(RequestModel):
    """What to read from a domain's videos, also from those that are appended later."""

    read: ReadSources | None = optional("As for a new task; the domain's if omitted.")
    speech_model: str | None = Field(
        default=None,
        max_length=64,
        pattern=r"^[a-z0-9][a-z0-9.-]*$",
        description="Name of a speech model of faster-whisper: all speech is transcribed again. If omitted, the "
        "server's transcribes what was not transcribed before.",
    )
    retry: bool = Field(default=False, description="Whether to read the videos again where that failed.")
    subtitled: bool = Field(default=False, description="Whether to transcribe videos with subtitles, too.")


class ReadingProgress(ResponseModel):
    """How many videos of a domain are read for speech and for text in the picture."""

    total: int = 0
    done: int = 0
    remaining: int = 0
    failed: int = Field(
        default=0, description="Videos of which something could not be read; their details say why."
    )
    active: bool = Field(default=False, description="Whether a worker is reading some of them now.")


class ReadingDetails(ReadingProgress):
    """What is read from a domain's videos, and the progress."""

    read: str = Field(description="`off`, or some of `file`, `location`, `speech` and `screen`.")
    unavailable: dict[str, str] = Field(description="Why this server cannot read one of them.")


class RejectedVideo(ResponseModel):
    """A rejected video with the reason."""

    id: str
    task_id: str = Field(description="Task that rejected it: a domain, or an append.")
    uri: ShownUri
    reason: str


class VideoCounts(ResponseModel):
    """Video counts of a task."""

    videos: int = 0
    accepted: int = 0
    rejected: int = 0
    train: int = 0
    val: int = 0
    test: int = 0
    appended: int = 0


class TaskDetails(ResponseModel):
    """A task: a domain to learn, an append of videos to a learned domain, or an upgrade of one."""

    id: str
    name: str
    slug: str | None = optional(
        "Name in ASCII, accepted as a name; null for an append, an upgrade or a deleted domain."
    )
    into: str | None = Field(
        description="ID of the task whose domain receives the videos of an append, or is upgraded; otherwise null."
    )
    upgrades: bool = Field(
        default=False,
        description="Whether the task learns the domain `into` with another backbone or method.",
    )
    relearns: str | None = optional("For a relearned domain: domain whose appended videos it receives.")
    method: str
    settings: dict[str, Scalar]
    backbone: str | None = optional("Encoder of frames and texts, for an append that of its domain.")
    state: Open[TaskState]
    progress: TaskProgress
    rejected: list[RejectedVideo] = Field(description="The first 100; GET /videos?status=rejected has all.")
    error: str | None
    error_hint: str | None
    remedy: Action | None = optional("How to recover, once the cause is corrected.")
    counts: VideoCounts
    learned_order: int | None = Field(description="Position t in learning order, from 1.")
    release: str | None
    trained: bool
    held_out: Open[HeldOut] | None = Field(
        description="How recall is measured: with a `given` or `derived` test split, or `cross_fitted`: with learned "
        "captions, by a model trained without them; null if it is not."
    )
    read: str | None = optional("What is read from the videos; null for the server's setting.")
    reading: ReadingProgress | None = optional(
        "Progress of reading, while videos of a ready domain are still to be read."
    )
    position: int
    attempts: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    request_id: str | None = optional("`X-Request-ID` of the request that created it, as in log lines.")


class TaskEvent(ResponseModel):
    """A task event. IDs increase, so a client can request the events after the last one it has."""

    id: int
    task_id: str
    at: datetime
    kind: Open[Literal["state", "progress", "rejected", "log"]]
    data: dict[str, Any]


class LocalFile(RequestModel):
    """A file on the client's machine."""

    path: str = Field(min_length=1, max_length=4096, description="Path, relative to the selected folder.")
    size: int = Field(ge=0, le=2**53, description="Size in bytes.")
    upload: str | None = Field(default=None, max_length=64, description="ID of its unfinished upload.")


class LocalText(RequestModel):
    """Content of a caption table or sidecar file on the client's machine."""

    path: str = Field(min_length=1, max_length=4096, description="Path, relative to the selected folder.")
    content: Base64Bytes = Field(description="File content in Base64.")


class PreviewRequest(RequestModel):
    """Selected files, and the domain for their videos."""

    name: str | None = optional("Name of a new domain.")
    into: str | None = optional("ID of the task whose domain receives the videos.")
    method: str | None = optional("Learning method of a new domain.")
    settings: dict[str, Any] | None = optional("Method settings.")
    backbone: str | None = optional("Backbone of a new domain.")
    files: RequestList[LocalFile] = Field(max_length=200_000, description="All selected files.")
    texts: RequestList[LocalText] = Field(
        default_factory=list, max_length=200_000, description="Caption table and sidecar files."
    )
    table: str | None = optional(
        "Path of the caption table in `texts` (`.csv`, `.tsv`, `.json` or `.jsonl`); all selected tables if omitted."
    )
    encoding: str = Field(default="utf-8", max_length=50, description="Encoding of the text files.")
    captions_from_names: bool = Field(
        default=False, description="Whether to use the file name as the caption of a video without captions."
    )


class OmittedPath(ResponseModel):
    """A file or table row that is left out, with the reason."""

    path: str
    reason: str


class CaptionTable(ResponseModel):
    """A caption table recognized by its content."""

    path: str
    format: str = Field(description="Name of the recognized format, such as MSR-VTT.")
    delimiter: str | None = Field(description="Cell delimiter; null for JSON.")
    encoding: str
    videos: int = Field(description="Number of files that the table names.")


class UploadPreview(ResponseModel):
    """The task that the selected files would become."""

    domain: str | None = Field(description="Name of the domain; null if it has none yet.")
    is_append: bool = Field(description="Whether the videos are appended to a learned domain.")
    videos: list[VideoSpec] = Field(description="Videos of the task; `uri` is the path of the selected file.")
    bytes: int = Field(description="Total size of the videos.")
    captions: int = Field(description="Total number of captions.")
    transcripts: int = Field(description="Number of videos with a transcript.")
    without_captions: list[str] = Field(description="Paths of the videos without captions.")
    missing: list[OmittedPath] = Field(description="Table rows whose file is not selected.")
    skipped: list[OmittedPath] = Field(description="Selected files that are not uploaded.")
    tables: list[CaptionTable] = Field(description="Caption tables that supply the captions.")
    suggested_encoding: str | None = Field(
        description="Encoding that would work, if a text file cannot be read with the requested one."
    )
    problems: list[ProblemField] = Field(
        description="Reasons why the task would be refused, at most 20. `field` names a field, or a file and its line."
    )
