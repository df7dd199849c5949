"""Compiled engines for towers whose weights do not change. Without one, a tower runs in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import structlog

from models.errors import ModelError

Engine = TypeVar("Engine")

log = structlog.get_logger(__name__)

_TOLERANCE = 1e-5  # between features of an engine and torch, relative to the largest one or to 1
_MIN_COSINE = 0.99  # between text vectors of an engine, which rounds its weights, and torch


class EngineUnavailable(ModelError):
    """An engine cannot be used, for example because its vectors differ from torch's."""


class FrozenTower(Generic[Engine]):
    """A frozen tower's engine, which a function compiles on first use; without one, the tower's weights may change.

    A copy has no engine, because backbones are copied in order to be trained.
    """

    def __init__(self, compile_engine: Callable[[], Engine] | None = None) -> None:
        self.is_frozen = compile_engine is not None
        self._compile = compile_engine
        self._engine: Engine | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[FrozenTower[Engine]], tuple[()]]:
        return type(self), ()

    def engine(self) -> Engine | None:
        """Compile the engine once; None if the tower isn't frozen or, after a warning, if this machine can't use it."""
        if self._compile is None:
            return self._engine
        with self._lock:
            if self._compile is not None:
                try:
                    self._engine = self._compile()
                except Exception as error:  # a broken library may raise anything when it is imported or used
                    warn_unavailable(f"{type(error).__name__}: {error}")
                self._compile = None
        return self._engine


def require_equal(computed: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    """Compare an engine's features with torch's; raise EngineUnavailable if the order of sums does not explain it."""
    difference = float(np.abs(computed - expected).max())
    if not difference <= _TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise EngineUnavailable(f"features differ from torch by up to {difference:.1e}")


def require_similar(computed: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    """Compare an engine's unit vectors of texts ``[n, dim]`` with torch's; raise EngineUnavailable if rounded weights
    do not explain a difference.
    """
    lengths = np.linalg.norm(computed, axis=-1)
    cosine = float((computed * expected).sum(axis=-1).min())
    if not (cosine >= _MIN_COSINE and np.abs(lengths - 1).max() <= _TOLERANCE):
        raise EngineUnavailable(f"text vectors differ from torch: their cosine is {cosine:.3f}")


@cache
def warn_unavailable(error: str) -> None:
    """Log, once per process and error, that an engine cannot be used."""
    log.warning("engine_unavailable", error=error, hint="Towers run in torch, which is slower.")
