"""Backbone and default method of the library."""

from __future__ import annotations

import json

from index.errors import ShardStoreError
from index.files.store_folder import StoreFolder
from service.core.settings import DEFAULT_BACKBONE, settings

__all__ = ["default_method", "library_backbone"]

_CLOSED_FORM_BACKBONE = "small"


def library_backbone() -> str:
    """Return the configured backbone; without one, that of the library's release, or the default for a new library.

    A library keeps the backbone that it began with: vectors of different backbones cannot be compared.
    """
    configured = settings().backbone
    if configured is not None:
        return configured
    try:
        folder = StoreFolder(settings().index_dir)
        release = folder.manifest().release if settings().index_dir.exists() else None
        if release is not None:
            description = json.loads((folder.release_folder(release) / "release.json").read_text())
            return str(description["backbone"])
    except (ShardStoreError, OSError, ValueError, KeyError):
        pass  # the process that opens the index next reports the damage
    return DEFAULT_BACKBONE


def default_method() -> str:
    """Return the configured method; without one, ``analytic`` for ``small``, ``strata`` for other backbones."""
    configured = settings().method
    if configured is not None:
        return configured
    return "analytic" if library_backbone() == _CLOSED_FORM_BACKBONE else "strata"
