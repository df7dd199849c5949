"""Reasons and hints for errors of the learning job, as stored with a failed task."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cinestrata_schemas.problems import Action
from index.errors import ShardStoreError, StoreUnavailable
from models.errors import ModelError
from trainer.errors import (
    CheckpointNotWritten,
    FramesMissing,
    LibraryDamaged,
    NothingToLearn,
    TrainingDiverged,
    VectorIdsTaken,
)
from trainer.methods import MethodError, MethodMismatch


class FailureMessage(NamedTuple):
    """Reason and hint of a failed task.

    Attributes:
        reason: Sentence that describes the failure.
        hint: Sentence that describes the remedy.
        remedy: What ends the failure after that.
    """

    reason: str
    hint: str
    remedy: Action


def failure_message(error: BaseException, task_id: str) -> FailureMessage | None:
    """Reason, hint and remedy for an error of the learning job; None for an unexpected error."""
    message = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
    retry, add = Action(name="retry_task", id=task_id), Action(name="add_domain")
    if isinstance(error, TrainingDiverged):
        return FailureMessage(
            f"Training diverged: {message}.",
            "Add the domain again with a smaller learning rate in its settings.",
            add,
        )
    if isinstance(error, MethodMismatch):
        fitting = {"method": error.method, "settings": error.settings}
        return FailureMessage(
            f"{message}.",
            "Retry the task with settings that fit.",
            retry.model_copy(update={"body": fitting}),
        )
    if isinstance(error, MethodError):
        return FailureMessage(f"{message}.", "Add the domain again with a method and settings that fit.", add)
    if isinstance(error, NothingToLearn):
        return FailureMessage(f"{message}.", "Add a domain with the videos that you want to keep.", add)
    if isinstance(error, VectorIdsTaken):
        return FailureMessage(
            f"{message}.",
            "Delete the task, then add its videos again: they get other ids.",
            Action(name="delete_task", id=task_id),
        )
    reason = f"{message}."
    if isinstance(error, CheckpointNotWritten):
        correction = error.hint
    elif isinstance(error, FramesMissing):
        correction = "Put the video back where it was"
    elif isinstance(error, StoreUnavailable):
        correction = "Bring the store of the vectors back"
    elif isinstance(error, LibraryDamaged | ShardStoreError):
        correction = "Restore the index folder from a backup"
    elif isinstance(error, ModelError):
        correction = "Start the worker with the backbone that the library needs"
    elif "No space left on device" in str(error):
        reason, correction = f"The disk is full ({message}).", "Make room for the data folder"
    elif "Read-only file system" in str(error):
        reason, correction = f"The data folder is read-only ({message}).", "Make the data folder writable"
    elif isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        reason = f"Out of memory while learning ({message})."
        correction = (
            "Give the worker more memory (or add the domain again with a smaller batch_size in its settings)"
        )
    else:
        return None
    return FailureMessage(reason, f"{correction}, then retry the task.", retry)
