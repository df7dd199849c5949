"""Errors of training and evaluation.

TrainingError
├── FramesMissing         the decoded frames of a video are missing or unusable
├── NothingToLearn        a task has no accepted video left
├── TrainingDiverged      loss or gradient is not finite
├── ReplicaKilled         a process that trains together with others was killed
├── CheckpointNotWritten  the folder of the checkpoints is read-only, or its disk is full
├── LibraryDamaged        a release that the task builds on differs from the published one
├── VectorIdsTaken        the shard of a domain has vectors with IDs of an append
└── EvaluationError       scores or galleries that no rank can be computed from
"""

from __future__ import annotations


class TrainingError(ValueError):
    """Base class of training errors; the message contains the remedy."""


class FramesMissing(TrainingError):
    """A video's frame cache is missing, unreadable, or has another shape than the backbone needs."""


class NothingToLearn(TrainingError):
    """All accepted videos of a task were deleted before it was published."""


class TrainingDiverged(TrainingError):
    """The loss or its gradient became infinite or NaN."""


class ReplicaKilled(TrainingError):
    """A process that trains together with others was killed; training can resume from its checkpoint."""


class CheckpointNotWritten(TrainingError):
    """The folder of the checkpoints cannot be written.

    Attributes:
        hint: Remedy for the operator, as an imperative without a full stop.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[type[CheckpointNotWritten], tuple[str, str]]:
        return type(self), (str(self), self.hint)


class LibraryDamaged(TrainingError):
    """The files of a release differ from the published ones."""


class VectorIdsTaken(TrainingError):
    """The shard of a domain has vectors of other videos with IDs of an append."""


class EvaluationError(TrainingError):
    """Ranks cannot be computed from the scores or galleries."""
