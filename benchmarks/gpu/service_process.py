"""Prepare settings and catalog of an empty library, for a check that runs the service in its own process."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import structlog

from benchmarks.gpu.check_plan import GpuPlan
from service.catalog.migrations import upgrade
from service.core.settings import settings


def fresh_library(plan: GpuPlan, name: str, backbone: str) -> Path:
    """Point this process's settings to an empty library with a backbone, and return its data folder."""
    root = plan.folder / name
    root.mkdir()
    os.environ |= {
        "CINESTRATA_DATA_DIR": str(root),
        "CINESTRATA_BACKBONE": backbone,
        "CINESTRATA_LOG_LEVEL": "ERROR",
    }
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    settings.cache_clear()
    settings().media_root.mkdir(parents=True)
    upgrade(settings())
    return root
