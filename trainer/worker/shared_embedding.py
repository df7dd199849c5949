"""Embed a task's videos on several workers: each chunk becomes a part file, and the task's owner joins the parts.

The owner plans the chunks, and embeds chunks like any other learning worker. A worker that is killed loses at most its
chunk; parts of an earlier attempt with the same encoder and videos are reused. A chunk that fails on other workers is
left to the owner, because they may be broken: a full GPU, or a checkpoint folder that is not shared.

A part is complete or absent: it is written to a hidden file, synced and renamed. Its name contains the chunk's fencing
token, and the catalog has its checksum, so no part is read whose worker had lost the chunk.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import structlog
from safetensors import SafetensorError
from safetensors.numpy import load, save
from sqlalchemy import delete, select

from index.arrays import Ids, Vectors
from index.files.durable_files import replace_file, sync
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import read_video_release, select_video_tensors
from models.encoders.video_encoder import VideoEncoder
from models.releases.release_files import write_release
from models.releases.release_state import ReleaseState
from service.catalog.database import session_scope
from service.catalog.tables import Chunk, Task
from service.celery_worker import worker_name
from service.core.errors import LeaseLost, Unavailable
from service.core.settings import settings
from service.tasks.broker import EMBED, celery_app
from service.tasks.lifecycle import (
    ChunkClaim,
    Claim,
    claim_chunk,
    plan_chunks,
    process_free_chunks,
    read_totals,
    send_due,
)
from trainer.task_data import Clip, vector_ids
from trainer.training_checkpoint import run_identity
from trainer.video_embedding import embed_clips
from trainer.worker.catalog_reader import load_clips
from trainer.worker.job_environment import open_library, task_backbone

_PREFIX, _ENCODER = "parts-", "encoder"

log = structlog.get_logger(__name__)


class PartFolder:
    """Folder with the parts of a task and the encoder that makes them; ``run`` is a digest of encoder and videos."""

    def __init__(self, task_folder: Path, run: str) -> None:
        self._task_folder = task_folder
        self.path = task_folder / f"{_PREFIX}{run}"

    @property
    def encoder_path(self) -> Path:
        """Folder with the release that embeds; it is complete if it exists."""
        return self.path / _ENCODER

    def prepare(self, write_encoder: Callable[[Path], None] | None) -> None:
        """Create the folder, with the encoder's files if ``write_encoder`` writes any."""
        self.path.mkdir(parents=True, exist_ok=True)
        if write_encoder is None or self.encoder_path.exists():
            return
        # A worker that lost the task may be writing the same encoder.
        staged = self.path / f".{_ENCODER}-{uuid4().hex}"
        staged.mkdir()
        try:
            write_encoder(staged)
            for path in (*staged.iterdir(), staged):
                sync(path)
            staged.rename(self.encoder_path)
        except OSError:
            if not self.encoder_path.exists():
                raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        sync(self.path)

    def remove_others(self) -> None:
        """Remove the folders of the task's other runs."""
        for other in self._task_folder.glob(f"{_PREFIX}*"):
            if other != self.path:
                shutil.rmtree(other, ignore_errors=True)

    def write(self, number: int, token: int, ids: Ids, vectors: Vectors) -> str:
        """Write IDs ``int64 [n]`` and vectors ``float32 [n, dim]`` durably; return the SHA-256 of the file."""
        content = save({"ids": ids, "vectors": np.ascontiguousarray(vectors)})
        with replace_file(self._part(number, token)) as staged:
            staged.write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    def read(self, number: int, token: int, checksum: str | None) -> tuple[Ids, Vectors] | None:
        """Read the IDs and vectors of a part; None if the file is missing or differs from its checksum."""
        try:
            content = self._part(number, token).read_bytes()
            if hashlib.sha256(content).hexdigest() != checksum:
                raise ValueError("its checksum differs")
            tensors = load(content)
            return tensors["ids"], tensors["vectors"]
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            log.warning("part_unreadable", folder=str(self.path.name), part=number, error=str(error))
            return None

    def _part(self, number: int, token: int) -> Path:
        return self.path / f"{number:06d}.{token}.safetensors"


EMBED_CHUNK_VIDEOS = 256  # a multiple of the batch, so that batches have the same videos as without chunks
_TURN_SECONDS = 60.0  # how long a worker helps with a task before it takes the next message
_SAVE_SECONDS = 1.0  # between transactions that store a chunk's progress
_WAIT_SECONDS = 0.25  # between checks whether other workers have finished their chunks

Embed = Callable[..., Vectors]  # embed_clips without its first parameter, the encoder


@celery_app.task(name=EMBED, ignore_result=True)
def run_embedding_job(task_id: str) -> None:
    """Help with another worker's task, then send the messages for due tasks."""
    embed_free_chunks(task_id, worker_name())
    send_due()


def embed_shared(
    claim: Claim,
    clips: Sequence[Clip],
    embed: Embed,
    fingerprint: str,
    encoder: Callable[[Path], None] | None = None,
) -> Vectors:
    """Embed a claimed task's clips as unit vectors ``[n, dim]``, in their order, together with other workers.

    Args:
        embed: Embeds clips, as :func:`~trainer.video_embedding.embed_clips` does.
        encoder: Writes a release with this encoder for other workers; None if the library has one.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: See ``Claim.progress``.
        FramesMissing: The frames of a video are gone.
        OSError: A part cannot be written.
    """
    task_id, total = claim.task.id, len(clips)

    def report(done: int) -> None:
        claim.progress("indexing", done / total, done=done, total=total)

    if total <= EMBED_CHUNK_VIDEOS:  # killing the worker loses no more than a chunk
        report(0)
        return embed(clips, report=report)

    def report_all() -> None:
        """Report the progress of all workers together."""
        report(total - read_totals(task_id, "indexing").remaining)

    ids = [clip.vector_id for clip in clips]
    content = [(clip.vector_id, clip.frames_path.name) for clip in clips]
    run = run_identity(task_id, fingerprint, EMBED_CHUNK_VIDEOS, content)
    folder = PartFolder(settings().checkpoints_dir / task_id, run)
    folder.prepare(encoder)
    _plan(claim, folder, ids, run)
    send_due()  # other workers may take chunks
    while (totals := read_totals(task_id, "indexing")).unfinished:
        report(total - totals.remaining)
        chunk = claim_chunk(task_id, "indexing", claim.owner, owns_task=True)
        if chunk is None:  # other workers embed the last chunks
            time.sleep(_WAIT_SECONDS)
            continue
        try:
            chunk_clips = clips[bisect_left(ids, chunk.first_id) : bisect_right(ids, chunk.last_id)]
            with chunk:
                _embed_chunk(chunk, folder, embed, chunk_clips, report=report_all)
        except LeaseLost:
            claim.tick()  # raises if the task is lost too; otherwise another worker has the chunk
    return _join_parts(claim, folder, clips, embed)


def embed_free_chunks(task_id: str, owner: str) -> None:
    """Embed free chunks of another worker's task; see :func:`process_free_chunks`."""

    def embed_chunks(chunks: Iterator[ChunkClaim]) -> None:
        send_due()
        with session_scope() as session:
            task = session.get_one(Task, task_id)
            domain, target = task.learned_id, None if task.upgrades else task.target_id
            partial = task.partial
        run: str | None = None
        embed: Embed | None = None
        backbone: Backbone | None = None
        for chunk in chunks:
            with chunk:
                backbone = backbone or task_backbone(task_id)
                folder = PartFolder(settings().checkpoints_dir / task_id, chunk.run or "")
                if embed is None or run != chunk.run:
                    run, embed = chunk.run, _open_encoder(domain, target, folder, backbone)
                clips = load_clips(domain, backbone, chunk.first_id, chunk.last_id)
                if partial:
                    clips = tuple(clip for clip in clips if clip.frames_path.exists())
                _embed_chunk(chunk, folder, embed, clips)

    process_free_chunks(task_id, "indexing", owner, _TURN_SECONDS, process=embed_chunks)


def write_encoder(state: ReleaseState) -> Callable[[Path], None]:
    """Prepare a function that writes a release's video encoder into a folder."""
    profile = state.profiles.part(len(state.profiles) - 1, len(state.profiles))
    encoder = select_video_tensors(state)
    last = replace(encoder, tasks=state.tasks[-1:], confidence=None, calibration=(), profiles=profile)
    return lambda folder: write_release(folder, last)


def _plan(claim: Claim, folder: PartFolder, vector_ids: Sequence[int], run: str) -> None:
    """Plan the chunks, unless an earlier attempt with the same encoder and videos has planned them."""
    with claim.transaction() as session:
        folder.remove_others()  # in the transaction, so that a worker that lost the task cannot remove newer parts
        of_stage = (Chunk.task_id == claim.task.id, Chunk.stage == "indexing")
        if session.scalar(select(Chunk.id).where(*of_stage, Chunk.run == run).limit(1)) is None:
            session.execute(delete(Chunk).where(*of_stage))
            plan_chunks(session, claim.task.id, "indexing", vector_ids, size=EMBED_CHUNK_VIDEOS, run=run)


def _embed_chunk(
    chunk: ChunkClaim,
    folder: PartFolder,
    embed: Embed,
    clips: Sequence[Clip],
    report: Callable[[], None] = lambda: None,
) -> None:
    """Embed a claimed chunk's clips, and store the vectors as a part; ``report`` is called when progress is stored."""
    saved, saved_at = 0, time.monotonic()

    def report_batch(done: int) -> None:
        nonlocal saved, saved_at
        chunk.tick()
        if time.monotonic() - saved_at < _SAVE_SECONDS:
            return
        saved_at = time.monotonic()
        with suppress(Unavailable):  # only the lease decides whether the job goes on
            with chunk.transaction() as session:
                chunk.count_finished(session, done - saved)
            saved = done
            report()

    vectors = embed(clips, report=report_batch) if clips else np.empty((0, 0), np.float32)
    checksum = folder.write(chunk.number, chunk.token, vector_ids(clips), vectors)
    with chunk.transaction() as session:
        chunk.complete(session, checksum=checksum)


def _open_encoder(domain: str, target: str | None, folder: PartFolder, backbone: Backbone) -> Embed:
    """Open the encoder for a task's chunks: that of the domain to append to (target), or the one just learned."""
    if target is not None:
        return partial(embed_clips, open_library().video_encoder(backbone, target))
    release = read_video_release(folder.encoder_path)
    encoder = VideoEncoder(backbone, {domain: release.fingerprint}, {domain: release})
    return partial(embed_clips, encoder.for_task(domain))


def _join_parts(claim: Claim, folder: PartFolder, clips: Sequence[Clip], embed: Embed) -> Vectors:
    """Collect the vectors of all clips from the parts; embed again what no readable part contains."""
    with session_scope() as session:
        parts = session.execute(
            select(Chunk.number, Chunk.fencing_token, Chunk.checksum)
            .where(Chunk.task_id == claim.task.id, Chunk.stage == "indexing")
            .order_by(Chunk.number)
        ).all()
    vectors_by_id: dict[int, Vectors] = {}
    for number, token, checksum in parts:
        claim.tick()
        if part := folder.read(number, token, checksum):
            vectors_by_id.update(zip(part[0].tolist(), part[1], strict=True))
    missing = [clip for clip in clips if clip.vector_id not in vectors_by_id]
    if missing:
        vectors = embed(missing, report=lambda done: claim.tick())
        vectors_by_id.update(zip((clip.vector_id for clip in missing), vectors, strict=True))
    return np.stack([vectors_by_id[clip.vector_id] for clip in clips])
