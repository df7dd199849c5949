"""The catalog's tables, the same on SQLite and PostgreSQL; a test compares the migrations with them."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    inspect,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, validates

from cinestrata_schemas.choice_types import ReadSource, TextSource
from service.core.text_rules import name_key

Response = TypeVar("Response", bound=BaseModel)

LEARNING_STATES = ("training", "indexing", "evaluating")
ACTIVE_STATES = ("queued", "probing", *LEARNING_STATES)
FINAL_STATES = ("ready", "failed", "cancelled")
STATES = (*ACTIVE_STATES, *FINAL_STATES)

# SQLite's AUTOINCREMENT requires INTEGER (64 bits wide there); IDs are never reused.
GrowingId = BigInteger().with_variant(Integer, "sqlite")


class StoredJson(TypeDecorator[Any]):
    """A JSON object (``dict``) or array (``list``); with ``nullable``, None is NULL."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type[dict[str, Any]] | type[list[Any]], *, nullable: bool = False) -> None:
        super().__init__(none_as_null=nullable)
        self.kind = kind


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time, also on SQLite, which stores no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        """Type of the values."""
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware time to UTC."""
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to an aware time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _check_json(table: Table) -> None:
    """Make SQLite refuse values in JSON columns that are not JSON, or of another kind."""
    for column in table.columns:
        if isinstance(column.type, StoredJson):
            kind = "object" if column.type.kind is dict else "array"
            check = (
                f"{column.name} IS NULL OR json_valid({column.name}) AND json_type({column.name}) = '{kind}'"
            )
            table.append_constraint(CheckConstraint(check, name=column.name).ddl_if(dialect="sqlite"))


class Base(DeclarativeBase):
    """Base of all tables, with fixed constraint names so that migrations work on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, float: Float, str: Text}  # noqa: RUF012

    @classmethod
    def __table_cls__(cls, *arguments: Any, **options: Any) -> Table:
        """Create a class's table, which is STRICT on SQLite."""
        table = Table(*arguments, sqlite_strict=True, **options)
        _check_json(table)
        return table


def to_response(model: type[Response], row: Base, **values: Any) -> Response:
    """Create a response from a row: each field has the row's value of this name, unless one is given."""
    names = (model.model_fields.keys() & inspect(type(row)).column_attrs.keys()) - values.keys()
    return model(**{name: getattr(row, name) for name in names}, **values)


class PositionCounter(Base):
    """The last assigned task position, locked until commit: tasks become visible in order of position."""

    __tablename__ = "line"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_position: Mapped[int] = mapped_column(BigInteger)


class EditCounter(Base):
    """One row, by which edits, verdicts, deletions and reassignments get numbers; see ``database.edit_number``.

    In SQLite, the number of the last one. In PostgreSQL, what is added to the ID of a transaction.
    """

    __tablename__ = "edits"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_edit: Mapped[int] = mapped_column(BigInteger)


class Task(Base):
    """A domain of videos, from arrival to ready; or an append to a learned domain's shard, or an upgrade of it."""

    __tablename__ = "tasks"
    __table_args__ = (
        CheckConstraint("state IN (" + ", ".join(f"'{s}'" for s in STATES) + ")", name="state"),
        Index("ix_tasks_state_position", "state", "position"),
    )

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, unique=True)  # in the queue; a retry gets a new one
    name: Mapped[str] = mapped_column(String(80), unique=True)
    name_key: Mapped[str] = mapped_column(String(240), index=True)  # follows the name
    # For a domain that is not deleted.
    slug: Mapped[str | None] = mapped_column(String(80), index=True, unique=True)
    method: Mapped[str] = mapped_column(String(64))
    settings: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict), default=dict)
    backbone: Mapped[str | None] = mapped_column(String(255))  # None: that of the library when the task runs
    # What is read from the videos: off, or names separated by commas; None: as configured when the task is published.
    read: Mapped[str | None] = mapped_column(String(64))

    state: Mapped[str] = mapped_column(String(16), default="queued")
    progress: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict), default=lambda: {"stage": "queued"})
    error: Mapped[str | None]
    error_hint: Mapped[str | None]
    # For a failed task: the ``Action`` that recovers it.
    remedy: Mapped[dict[str, Any] | None] = mapped_column(StoredJson(dict, nullable=True))
    counts: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict), default=dict)

    probed_at: Mapped[datetime | None]  # set: the videos are probed, and the training is due
    attempts: Mapped[int] = mapped_column(default=0)  # claims since the last progress
    lease_owner: Mapped[str | None] = mapped_column(String(255))
    lease_expires_at: Mapped[datetime | None]
    # Incremented whenever the owner may have changed.
    fencing_token: Mapped[int] = mapped_column(BigInteger, default=0)
    cancel_requested: Mapped[bool] = mapped_column(default=False)

    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    request_id: Mapped[str | None] = mapped_column(String(64))  # of the HTTP request that created the task

    release_id: Mapped[str | None] = mapped_column(String(64))  # the release after this task
    learned_order: Mapped[int | None] = mapped_column(unique=True)  # t = 1, 2, …
    trained: Mapped[bool] = mapped_column(default=False)
    held_out: Mapped[str | None] = mapped_column(String(16))
    # For an append or an upgrade: the domain.
    target_id: Mapped[str | None] = mapped_column(String(128), index=True)
    # Whether the task learns its target's videos again, with another backbone or method.
    upgrades: Mapped[bool] = mapped_column(default=False, server_default=false())
    # Whether an upgrade leaves videos that cannot be read in their shard.
    partial: Mapped[bool] = mapped_column(default=False, server_default=false())
    upgrade_order: Mapped[int | None]  # of a published upgrade: its row i in the recall matrix
    # For an upgrade that can be undone: columns of the domain as they were, and its appended videos.
    undo: Mapped[dict[str, Any] | None] = mapped_column(StoredJson(dict, nullable=True))
    deleted_at: Mapped[datetime | None]  # set: the domain was deleted as a whole
    # For a relearned domain: the domain whose appended videos it takes over.
    relearns_id: Mapped[str | None] = mapped_column(String(128), index=True)
    # Edits of captions, and of metadata or by deletion, in the domain; search caches are versioned by them.
    caption_edits: Mapped[int] = mapped_column(BigInteger, default=0, index=True)
    metadata_edits: Mapped[int] = mapped_column(BigInteger, default=0, index=True)

    videos: Mapped[list[Video]] = relationship(back_populates="task", passive_deletes=True)

    @property
    def learned_id(self) -> str:
        """ID of the domain that the task learns: for an upgrade, its target."""
        return self.target_id if self.upgrades and self.target_id else self.id

    @validates("name")
    def _set_name_key(self, _attribute: str, name: str) -> str:
        self.name_key = name_key(name)
        return name


class Video(Base):
    """A video in a task. ``vector_id`` is its ID in the index."""

    __tablename__ = "videos"
    __table_args__ = (
        CheckConstraint("status IN ('pending', 'accepted', 'rejected')", name="status"),
        Index("ix_videos_task_id_status", "task_id", "status"),
        Index("ix_videos_content_hash", "content_hash"),
        # Covers only the edited videos, which are few.
        Index(
            "ix_videos_last_edit",
            "last_edit",
            sqlite_where=text("last_edit IS NOT NULL"),
            postgresql_where=text("last_edit IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    vector_id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(128), unique=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="RESTRICT"))
    uri: Mapped[str]
    split: Mapped[str | None] = mapped_column(String(8))  # given by the user
    # train | val | test | appended | fold, once probed
    effective_split: Mapped[str | None] = mapped_column(String(8))
    captions: Mapped[list[str]] = mapped_column(StoredJson(list), default=list)
    extra: Mapped[dict[str, Any]] = mapped_column("metadata", StoredJson(dict), default=dict)
    added_at: Mapped[datetime] = mapped_column(default=partial(datetime.now, UTC))
    # For a copy that is being relearned, or a new version of a file: vector ID of the original, which it takes over
    # when it is published.
    copy_of: Mapped[int | None] = mapped_column(GrowingId, index=True)
    # Set: the file was replaced, and the texts and verdicts from before may describe its earlier version.
    replaced_at: Mapped[datetime | None]
    last_edit: Mapped[int | None] = mapped_column(BigInteger)  # number of the last edit; NULL: never edited
    status: Mapped[str] = mapped_column(String(16), default="pending")
    reason: Mapped[str | None]
    # Of a rejected video: its content is the reason, so that a retry would reject the same file again.
    is_rejection_final: Mapped[bool] = mapped_column(default=False)

    content_hash: Mapped[str | None] = mapped_column(String(64))
    bytes: Mapped[int | None] = mapped_column(BigInteger)
    container: Mapped[str | None] = mapped_column(String(64))
    codec: Mapped[str | None] = mapped_column(String(64))
    width: Mapped[int | None]
    height: Mapped[int | None]
    fps: Mapped[float | None]
    duration: Mapped[float | None]  # seconds
    frames: Mapped[int | None] = mapped_column(BigInteger)

    task: Mapped[Task] = relationship(back_populates="videos")


class FileRemoval(Base):
    """A deleted video, or a rejected video of an ended task, whose files are still to be deleted."""

    __tablename__ = "file_removals"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    video_id: Mapped[str] = mapped_column(String(128))
    uri: Mapped[str]
    content_hash: Mapped[str | None] = mapped_column(String(64))


class Chunk(Base):
    """Some of a task's videos, processed by one worker at a time: vector IDs from first to last.

    The rows exist while the stage runs. Each chunk has its own lease, so several workers can share a task.
    """

    __tablename__ = "chunks"
    __table_args__ = (
        UniqueConstraint("task_id", "stage", "number"),
        CheckConstraint("stage IN ('probing', 'indexing')", name="stage"),
    )

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    stage: Mapped[str] = mapped_column(String(16))
    number: Mapped[int]
    first_id: Mapped[int] = mapped_column(GrowingId)
    last_id: Mapped[int] = mapped_column(GrowingId)
    videos: Mapped[int]  # when the chunk was planned
    finished: Mapped[int] = mapped_column(default=0)  # videos whose results are stored
    done_at: Mapped[datetime | None]
    # For an indexing chunk: identity of its encoder and videos.
    run: Mapped[str | None] = mapped_column(String(64))
    checksum: Mapped[str | None] = mapped_column(String(64))  # for indexing: SHA-256 of the part file
    attempts: Mapped[int] = mapped_column(default=0)  # claims so far
    lease_owner: Mapped[str | None] = mapped_column(String(255))
    lease_expires_at: Mapped[datetime | None]
    fencing_token: Mapped[int] = mapped_column(BigInteger, default=0)
    error: Mapped[str | None]  # why the last attempt failed


class Moment(Base):
    """Part of a long video, with its own vector. ``vector_id`` is its ID in the index (index/arrays.py)."""

    __tablename__ = "moments"

    vector_id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=False)
    video_vector_id: Mapped[int] = mapped_column(
        GrowingId, ForeignKey("videos.vector_id", ondelete="CASCADE"), index=True
    )
    start_seconds: Mapped[float]
    end_seconds: Mapped[float]


class Passage(Base):
    """Part of a transcript: consecutive cues of one source that searches treat as one text."""

    __tablename__ = "passages"

    video_vector_id: Mapped[int] = mapped_column(
        GrowingId, ForeignKey("videos.vector_id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    # By source, in order of precedence, and then by time.
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    source: Mapped[TextSource] = mapped_column(String(16), server_default="subtitles")
    # Start and end in seconds, and text, in order of time.
    cues: Mapped[list[tuple[float, float, str]]] = mapped_column(StoredJson(list))


class Reading(Base):
    """A source of timed texts that is read from a video's file, with its own lease while a worker reads it."""

    __tablename__ = "readings"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'done', 'failed', 'cancelled')", name="state"),
        # Covers only what is left to read.
        Index(
            "ix_readings_attempts_video_vector_id",
            "attempts",
            "video_vector_id",
            sqlite_where=text("state = 'pending'"),
            postgresql_where=text("state = 'pending'"),
        ),
    )

    video_vector_id: Mapped[int] = mapped_column(
        GrowingId, ForeignKey("videos.vector_id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    source: Mapped[ReadSource] = mapped_column(String(16), primary_key=True)
    state: Mapped[str] = mapped_column(String(16), default="pending")
    model: Mapped[str | None] = mapped_column(String(255))  # that reads it, or has read it; None: the default
    note: Mapped[str | None]  # what could not be read, and why
    attempts: Mapped[int] = mapped_column(default=0)
    # Start, end and text of what a person has corrected or deleted.
    corrected: Mapped[list[tuple[float, float, str]]] = mapped_column(StoredJson(list), default=list)
    lease_owner: Mapped[str | None] = mapped_column(String(255))
    lease_expires_at: Mapped[datetime | None]
    fencing_token: Mapped[int] = mapped_column(BigInteger, default=0)


class Feedback(Base):
    """What a caller said about a video as a result for a query. A new verdict replaces the previous one."""

    __tablename__ = "feedback"
    __table_args__ = (
        UniqueConstraint("video_vector_id", "words_key", "caller_kind", "caller"),
        CheckConstraint("verdict IN ('right', 'wrong')", name="verdict"),
        Index("ix_feedback_caller_id", "caller", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    video_vector_id: Mapped[int] = mapped_column(
        GrowingId, ForeignKey("videos.vector_id", ondelete="CASCADE")
    )
    text: Mapped[str]  # as typed
    words_key: Mapped[str] = mapped_column(String(64))  # digest of its words
    verdict: Mapped[str] = mapped_column(String(8))
    caller: Mapped[str] = mapped_column(String(255))  # the actor and its kind, as in the audit log
    caller_kind: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]


class Release(Base):
    """A release in the index folder."""

    __tablename__ = "releases"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="RESTRICT"), unique=True)
    learned_order: Mapped[int] = mapped_column(unique=True)  # i = 1, 2, …
    method: Mapped[str] = mapped_column(String(64))
    backbone: Mapped[str] = mapped_column(String(255))
    kind: Mapped[str] = mapped_column(String(16))  # frozen | tower | tame | low_rank | analytic
    fingerprint: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    metrics: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict), default=dict)


class Shard(Base):
    """A shard in the index folder."""

    __tablename__ = "shards"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="RESTRICT"), unique=True)
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id", ondelete="RESTRICT"))
    fingerprint: Mapped[str] = mapped_column(String(64))
    count: Mapped[int]
    dim: Mapped[int]
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class Recall(Base):
    """One cell of the matrix: release i on task t's queries. i = 0 is the untrained backbone."""

    __tablename__ = "recalls"
    __table_args__ = (UniqueConstraint("release_order", "task_order", "mode", "gallery"),)

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    release_order: Mapped[int]  # i
    task_order: Mapped[int]  # t
    mode: Mapped[str] = mapped_column(String(8))  # pinned | latest
    gallery: Mapped[str] = mapped_column(String(16))  # local | global | local_all | global_all
    queries: Mapped[int]
    r1: Mapped[float]  # shares, 0..1
    r5: Mapped[float]
    r10: Mapped[float]
    medr: Mapped[float]
    meanr: Mapped[float]
    # Share of queries whose own task was the first candidate.
    routing1: Mapped[float | None]
    query_set: Mapped[str | None] = mapped_column(String(64))  # digest of the queries in order
    first_hits: Mapped[bytes | None] = mapped_column(LargeBinary)  # one bit per query: its video ranks first


class Event(Base):
    """An event of a task."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_task_id_id", "task_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict), default=dict)


class Calibration(Base):
    """A confidence model that an append refitted for its release, with appended videos and captions."""

    __tablename__ = "calibrations"

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)  # the append
    release_id: Mapped[str] = mapped_column(String(64), index=True)
    generation: Mapped[int] = mapped_column(BigInteger)  # first index generation with the append
    model: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict))  # searches ignore an invalid model
