"""Reasons and hints for errors of the learning job, as stored with a failed task."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

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

__all__ = ["FailureMessage", "failure_message"]


class FailureMessage(NamedTuple):
    """Reason and hint of a failed task.

    Attributes:
        reason: Sentence that describes the failure.
        hint: Sentence that describes the remedy.
        remedy: Method and settings with which a retry fits the library; None if a retry needs no others.
    """

    reason: str
    hint: str
    remedy: dict[str, Any] | None = None


def failure_message(error: BaseException, retry: str) -> FailureMessage | None:
    """Reason and hint for an error; None for an unexpected error.

    Args:
        error: Error raised by the learning job.
        retry: How the task is retried, for example ``POST /tasks/tsk_1/retry``.
    """
    message = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
    if isinstance(error, TrainingDiverged):
        return FailureMessage(
            f"Training diverged: {message}.",
            "Add the domain again with a smaller learning rate in its settings.",
        )
    if isinstance(error, MethodMismatch):
        assignments = "".join(f" and {key}={value}" for key, value in error.settings.items())
        return FailureMessage(
            f"{message}.",
            f"Repeat the task with settings that fit: {retry} with method {error.method}{assignments}.",
            {"method": error.method, "settings": error.settings},
        )
    if isinstance(error, MethodError):
        return FailureMessage(f"{message}.", "Add the domain again with a method and settings that fit.")
    if isinstance(error, CheckpointNotWritten):
        return FailureMessage(f"{message}.", f"{error.hint}, then {retry}.")
    if isinstance(error, FramesMissing):
        return FailureMessage(f"{message}.", f"Put the video back where it was, then {retry}.")
    if isinstance(error, NothingToLearn):
        return FailureMessage(f"{message}.", "Add a domain with the videos that you want to keep.")
    if isinstance(error, VectorIdsTaken):
        return FailureMessage(
            f"{message}.", "Delete the task, then add its videos again: they get other ids."
        )
    if isinstance(error, StoreUnavailable):
        return FailureMessage(f"{message}.", f"Bring the store of the vectors back, then {retry}.")
    if isinstance(error, LibraryDamaged | ShardStoreError):
        return FailureMessage(f"{message}.", f"Restore the index folder from a backup, then {retry}.")
    if isinstance(error, ModelError):
        return FailureMessage(
            f"{message}.", f"Start the worker with the backbone that the library needs, then {retry}."
        )
    if "No space left on device" in str(error):
        return FailureMessage(
            f"The disk is full ({message}).", f"Make room for the data folder, then {retry}."
        )
    if "Read-only file system" in str(error):
        return FailureMessage(
            f"The data folder is read-only ({message}).", f"Make the data folder writable, then {retry}."
        )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return FailureMessage(
            f"Out of memory while learning ({message}).",
            f"Give the worker more memory, then {retry}; or add the domain again with a smaller batch_size in its "
            "settings.",
        )
    return None
