"""Modules of models that settings, clients and reports use import no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LEAVES = (
    "models.adapters",
    "models.backbones",
    "models.encoders",
    "models.errors",
    "models.forgetting_measures",
    "models.releases.probe_queries",
    "models.releases.release_lineage",
    "models.routing.confidence_model",
    "models.routing",
    "models.routing.router",
)


def test_leaf_modules_do_not_import_torch() -> None:
    code = f"import sys, {', '.join(LEAVES)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, timeout=120)
