"""Errors of training and evaluation.

TrainingError
├── FramesMissing         a video's decoded frames are missing or unusable
├── NothingToLearn        a task has no accepted videos left
├── TrainingDiverged      loss or gradient is not finite
├── CheckpointNotWritten  the checkpoint folder is read-only, or its disk is full
├── LibraryDamaged        a release that the task builds on differs from the published one
├── VectorIdsTaken        a shard already uses the vector IDs of an append
└── EvaluationError       no ranks can be computed from scores or galleries
"""

from __future__ import annotations


class TrainingError(ValueError):
    """Base class of training errors; the message contains the remedy."""


class FramesMissing(TrainingError):
    """A video's frame cache is missing, unreadable, or not in the shape that the backbone needs."""


class NothingToLearn(TrainingError):
    """All accepted videos of a task were deleted before it was published."""


class TrainingDiverged(TrainingError):
    """The loss or its gradient became infinite or NaN."""


class CheckpointNotWritten(TrainingError):
    """The checkpoint folder is not writable.

    Attributes:
        hint: What the operator should do, as an imperative without a full stop.
    """

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
