"""What can go wrong while a model is built, loaded or saved.

ModelError
├── BackboneUnavailable   the named backbone, or its weights, cannot be had on this machine
├── BackboneUnsupported   the weights were found, but the architecture has no towers to adapt
└── ReleaseError          a release folder does not hold what it must
"""

from __future__ import annotations

__all__ = ["BackboneUnavailable", "BackboneUnsupported", "ModelError", "ReleaseError"]


class ModelError(ValueError):
    """Root of the model errors; the message says what to do."""


class BackboneUnavailable(ModelError):
    """The backbone's name is unknown, or its weights are neither here nor reachable."""


class BackboneUnsupported(ModelError):
    """The architecture has no plain CLIP towers of transformer blocks."""


class ReleaseError(ModelError):
    """A release folder is missing a file, or a file does not match its description."""
