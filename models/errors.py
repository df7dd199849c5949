"""Errors of building, loading and saving models.

ModelError
├── BackboneUnavailable   the named backbone, or its weights, are not available on this machine
├── BackboneUnsupported   the weights are available, but the architecture has no towers to adapt
└── ReleaseError          a release is incomplete, invalid, or does not fit
"""

from __future__ import annotations


class ModelError(ValueError):
    """Base class of model errors; the message says how to resolve the error."""


class BackboneUnavailable(ModelError):
    """The backbone's name is unknown, or its weights are neither on this machine nor reachable."""


class BackboneUnsupported(ModelError):
    """The architecture has no plain CLIP towers of transformer blocks."""


class ReleaseError(ModelError):
    """A release lacks a file, a file is invalid, or the release does not fit the backbone or its ancestors."""
