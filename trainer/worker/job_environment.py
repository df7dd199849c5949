"""What all jobs of the learning worker share: backbone, library, failure messages and cleanup."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import structlog
import torch
from sqlalchemy import select

from cinestrata_schemas.problems import Action
from index.errors import ShardStoreError, StoreUnavailable
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone, weights_bytes
from models.backbones.tower_computation import compute_device, has_fast_bfloat16
from models.errors import ModelError, NotEnoughMemory
from service.catalog.database import session_scope
from service.catalog.tables import ACTIVE_STATES, Task
from service.core.errors import CinestrataError, Unavailable, VectorStoreOutage
from service.core.settings import Settings, settings
from service.library.deletion import sweep_index
from service.search.library_words import write_words
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from service.storage.library_backbone import backbone_of_task
from service.storage.video_files import delete_unneeded_frames, remove_deleted_files
from service.tasks.lifecycle import Claim
from trainer.errors import (
    CheckpointNotWritten,
    FramesMissing,
    LibraryDamaged,
    NothingToLearn,
    ReplicaKilled,
    TrainingDiverged,
    VectorIdsTaken,
)
from trainer.methods import MethodError
from trainer.published_library import Library, LibraryCache
from trainer.task_data import TaskData, vector_ids
from trainer.training_memory import usable_bytes
from trainer.worker.catalog_reader import learned_captions

log = structlog.get_logger(__name__)

# Messages of memory errors that are no torch.OutOfMemoryError: of the CPU, CUDA, and the first matrix product.
_OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_CORRECTIONS = (
    (FramesMissing, "Put the video back where it was"),
    ((LibraryDamaged, ShardStoreError), "Restore the index folder from a backup"),
    (ModelError, "Make the backbone available to the worker"),
)
_MORE_MEMORY = (
    "Give the worker more memory (or add the domain again with a smaller batch_size in its settings)"
)
_RESTART = (
    "Restart the worker once nvidia-smi lists the GPU "
    '(or with CUDA_VISIBLE_DEVICES="" to learn on the processor)'
)


def task_backbone(task_id: str) -> Backbone:
    """Load a task's backbone for the jobs of this worker."""
    backbone = load_worker_backbone(backbone_of_task(task_id), settings().frames, settings().torch_threads)
    # Evaluation encodes queries in the same precision as the query service.
    backbone.query_precision = settings().query_precision
    is_fast = (
        not backbone.has_open_blocks and backbone.device.type == "cuda" and has_fast_bfloat16(backbone.device)
    )
    backbone.image_precision = "bfloat16" if is_fast else "float32"
    return backbone


# The library that this process has opened last.
_last: tuple[Settings, ShardStore, LibraryCache] | None = None


def open_library() -> Library:
    """Open the published library; raise ManifestError."""
    global _last
    if _last is None or _last[0] is not settings():
        _last = settings(), library_store(settings()), LibraryCache()
    library = Library(_last[1], learned_captions, _last[2])
    index_manifest.require_manifest(library.manifest)
    return library


@lru_cache(maxsize=1)
def load_worker_backbone(name: str, frames: int | None, threads: int | None) -> Backbone:
    """Load a backbone onto the compute device; the process keeps the last one.

    Raises NotEnoughMemory if its weights do not fit, and the errors of ``load_backbone``.
    """
    load_worker_backbone.cache_clear()  # before another is loaded: memory may not hold two
    if _last is not None:
        _last[2].encoder = None  # it refers to the backbone
    # The file and the model are in memory at once.
    needed, usable = 2 * weights_bytes(name), usable_bytes(torch.device("cpu"))
    if needed > usable:
        hint = "Give the worker more memory, or name a smaller model"
        raise NotEnoughMemory(f"loading backbone {name!r}", needed, usable, "cpu", hint=hint)
    if threads:
        torch.set_num_threads(threads)
    return load_backbone(name, frames).to(compute_device("auto"))


@contextmanager
def recorded_failure(claim: Claim) -> Iterator[None]:
    """Fail the claimed task with a reason and a hint for known errors, and leave others to the claim; raise Unavailable
    if a training process was killed or vectors are out of reach, so that the next attempt resumes.
    """
    try:
        yield
    except CinestrataError:
        raise
    except StoreUnavailable as error:
        raise VectorStoreOutage(f"{error}.") from error
    except ReplicaKilled as error:
        claim.log(f"The task will be tried again: {error}.")
        raise Unavailable(str(error)) from error
    except Exception as error:
        message = failure_message(error, claim.task.id)
        if message is None:
            raise
        log.warning("task_exception", task=claim.task.id, exc_info=error)
        if isinstance(error, TrainingDiverged):  # resumed from its checkpoint, it would only diverge again
            with claim.transaction():
                remove_checkpoints(claim.task.id)
        claim.fail(*message)


class FailureMessage(NamedTuple):
    """Why a task failed, and what to do about it."""

    reason: str
    hint: str
    remedy: Action


def failure_message(error: BaseException, task_id: str) -> FailureMessage | None:
    """Describe a job's error by reason, hint and remedy; None for an unexpected error."""
    message = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
    retry, add = Action(name="retry_task", id=task_id), Action(name="add_domain")
    if isinstance(error, TrainingDiverged):
        hint = "Add the domain again with a smaller learning rate in its settings."
        return FailureMessage(f"Training diverged: {message}.", hint, add)
    if isinstance(error, MethodError):
        return FailureMessage(f"{message}.", "Add the domain again with a method and settings that fit.", add)
    if isinstance(error, NothingToLearn):
        return FailureMessage(f"{message}.", "Add a domain with the videos you want to keep.", add)
    if isinstance(error, VectorIdsTaken):
        hint = "Delete the task, then add its videos again; they will get other IDs."
        return FailureMessage(f"{message}.", hint, Action(name="delete_task", id=task_id))
    if (correctable := _correctable(error)) is None:
        return None
    reason, correction = correctable
    return FailureMessage(reason.format(message), f"{correction}, then retry the task.", retry)


def _correctable(error: BaseException) -> tuple[str, str] | None:
    """Find the reason (a template for the message) and the correction, after which a retry helps; None for others."""
    text = str(error)
    if isinstance(error, NotEnoughMemory):
        return "Not enough memory: {}.", error.hint
    if isinstance(error, CheckpointNotWritten):
        return "{}.", error.hint
    for kinds, correction in _CORRECTIONS:
        if isinstance(error, kinds):
            return "{}.", correction
    if "No space left on device" in text:
        return "The disk is full ({}).", "Free up space for the data folder"
    if "Read-only file system" in text:
        return "The data folder is read-only ({}).", "Make the data folder writable"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        sign in text for sign in _OUT_OF_MEMORY
    ):
        return "Out of memory while learning ({}).", _MORE_MEMORY
    if isinstance(error, torch.AcceleratorError) or "No CUDA GPUs are available" in text:
        return "The worker's GPU failed ({}).", _RESTART
    return None


def clean_up(claim: Claim, task: TaskData) -> None:
    """Write a ready task's words; remove its checkpoints, frame caches and rejected uploads, and unneeded index files.

    Failures are only logged, since nothing depends on the removal; maintenance deletes the caches and uploads that
    remain.
    """
    write_words(vector_ids(task.clips))
    try:
        remove_checkpoints(claim.task.id)
        sweep_index()
        delete_unneeded_frames({clip.frames_path.stem for clip in task.clips})
        remove_deleted_files()
    except (OSError, Unavailable) as error:
        log.warning("cleanup_failed", task=task.task_id, error=str(error))


def remove_checkpoints(task_id: str) -> None:
    """Remove a task's checkpoints."""
    shutil.rmtree(settings().checkpoints_dir / task_id, ignore_errors=True)


def remove_other_checkpoints(task_id: str) -> None:
    """Remove the checkpoints of all tasks except this one and unfinished appends, which run at the same time; raise
    Unavailable without the catalog.
    """
    folder = settings().checkpoints_dir
    others = [path for path in folder.iterdir() if path.name != task_id] if folder.is_dir() else []
    # Query after the listing, so that the catalog has every append whose folder is listed.
    with session_scope() as session:
        unfinished = Task.state.in_(ACTIVE_STATES) & Task.target_id.is_not(None)
        appends = set(session.scalars(select(Task.id).where(unfinished)))
    for path in others:
        if path.name not in appends:
            shutil.rmtree(path, ignore_errors=True)
