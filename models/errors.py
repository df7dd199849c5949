"""Errors raised while building, loading and saving models."""

from __future__ import annotations


class ModelError(ValueError):
    """Base class of model errors; the message says how to resolve the error."""


class BackboneUnavailable(ModelError):
    """The backbone's name is unknown, or its weights are neither on this machine nor reachable."""


class BackboneUnsupported(ModelError):
    """The architecture is not supported, or not by the method."""


class NotEnoughMemory(ModelError):
    """A device has too little memory for a computation, which did not begin; ``hint`` is an imperative clause."""

    def __init__(self, purpose: str, needed: int, usable: int, device: str, hint: str) -> None:
        super().__init__(
            f"{purpose} needs at least {_gigabytes(needed)} more memory, but only {_gigabytes(usable)} is free "
            f"{'on the GPU' if device == 'cuda' else 'for this process'}"
        )
        self.arguments = purpose, needed, usable, device, hint
        self.hint = hint

    def __reduce__(self) -> tuple[type[NotEnoughMemory], tuple[str, int, int, str, str]]:
        return type(self), self.arguments


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


class ReleaseError(ModelError):
    """A release lacks a file, a file is invalid, or the release does not fit the backbone or its ancestors."""
