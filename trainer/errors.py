"""What can go wrong while a task is learned.

TrainingError
├── FramesMissing       the decoded frames of a video are not where they were left
├── NothingToLearn      a task has no accepted video any more
├── TrainingDiverged    loss or gradient left the finite numbers
├── LibraryDamaged      a release that the task must build on is not as it was published
└── EvaluationError     a measure was asked of data that cannot give it
"""

from __future__ import annotations

__all__ = [
    "EvaluationError",
    "FramesMissing",
    "LibraryDamaged",
    "NothingToLearn",
    "TrainingDiverged",
    "TrainingError",
]


class TrainingError(ValueError):
    """Root of the errors of learning; the message says what to do."""


class FramesMissing(TrainingError):
    """A video's frame cache is gone, unreadable, or of another shape than the backbone wants."""


class NothingToLearn(TrainingError):
    """All accepted videos of a task were deleted before it was laid down."""


class TrainingDiverged(TrainingError):
    """The loss or its gradient became infinite or not a number."""


class LibraryDamaged(TrainingError):
    """The files of a release are not the ones that were published."""


class EvaluationError(TrainingError):
    """Scores or galleries from which no rank can be read."""
