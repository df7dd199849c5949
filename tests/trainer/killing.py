"""Interruption of training runs, for tests that resume from checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from trainer.training_loop import TrainingProgress

__all__ = ["Killed", "kill_at"]


class Killed(BaseException):
    """Interrupts training; not an ``Exception``, so that only the test catches it."""


def kill_at(step: int) -> Callable[[TrainingProgress], None]:
    """A progress callback that interrupts training after the given step."""

    def report(progress: TrainingProgress) -> None:
        if progress.step == step:
            raise Killed

    return report
