"""Runs that are killed on the way, for tests of what goes on from their checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from trainer.training_loop import TrainingProgress

__all__ = ["Killed", "kill_at"]


class Killed(BaseException):
    """Nothing catches it but the test."""


def kill_at(step: int) -> Callable[[TrainingProgress], None]:
    """A listener under which training ends after a step."""

    def report(progress: TrainingProgress) -> None:
        if progress.step == step:
            raise Killed

    return report
