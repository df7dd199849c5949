"""Errors of training and evaluation."""

from __future__ import annotations


class TrainingError(ValueError):
    """Base class of training errors; the message contains the remedy."""


class FramesMissing(TrainingError):
    """A video's frame cache is missing, unreadable, or not in the shape that the backbone needs."""


class NothingToLearn(TrainingError):
    """All accepted videos of a task were deleted before it was published."""


class TrainingDiverged(TrainingError):
    """The loss or its gradient became infinite or NaN."""


class ReplicaKilled(TrainingError):
    """One of several training processes was killed; training can resume from its checkpoint."""


class CheckpointNotWritten(TrainingError):
    """The checkpoint folder is not writable; ``hint`` has an imperative without a full stop."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[type[CheckpointNotWritten], tuple[str, str]]:
        return type(self), (str(self), self.hint)


class LibraryDamaged(TrainingError):
    """A release's files differ from the published ones."""


class VectorIdsTaken(TrainingError):
    """The domain's shard already uses the vector IDs of an append for other videos."""


class EvaluationError(TrainingError):
    """No ranks can be computed from the scores or galleries."""
