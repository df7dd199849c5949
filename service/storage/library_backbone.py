"""Choose the library's backbone and default method."""

from __future__ import annotations

import json

from index.errors import ShardStoreError
from index.files.store_folder import StoreFolder
from models.backbones import SMALL_NAMES, has_open_blocks
from service.core.settings import DEFAULT_BACKBONE, Settings, settings


def library_backbone(of: Settings | None = None) -> str:
    """Choose the configured backbone, or else the library's, or the default for a new library.

    A library keeps its first backbone, because vectors from different backbones are not comparable.
    """
    chosen = of or settings()
    if chosen.backbone is not None:
        return chosen.backbone
    try:
        folder = StoreFolder(chosen.index_dir)
        release = folder.manifest().release if chosen.index_dir.exists() else None
        if release is not None:
            description = json.loads((folder.release_folder(release) / "release.json").read_text())
            return str(description["backbone"])
    except (ShardStoreError, OSError, ValueError, KeyError):
        pass  # whoever opens the index next reports the damage
    return DEFAULT_BACKBONE


def default_method() -> str:
    """Choose the configured method, or else the backbone's default.

    That is ``analytic`` for ``small`` and ``lite2``, ``strata`` for others with open blocks, and ``bmu_moco`` for the
    rest.
    """
    configured = settings().method
    if configured is not None:
        return configured
    backbone = library_backbone()
    if backbone in SMALL_NAMES:
        return "analytic"
    return "strata" if has_open_blocks(backbone) else "bmu_moco"
