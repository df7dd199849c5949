"""The names of the learning methods that a task may ask for.

The methods themselves live above this package; a test there asserts that both lists agree.
"""

from __future__ import annotations

__all__ = ["METHOD_NAMES"]

METHOD_NAMES: tuple[str, ...] = (
    "base_moco",
    "bmu_moco",
    "ccmr",
    "clip_vip",
    "co2l",
    "ctp",
    "der",
    "drift_adapter",
    "er",
    "ewc",
    "ffa_tame",
    "finetune",
    "lump",
    "lwf",
    "mas",
    "moe_adapter",
    "qdc",
    "rwalk",
    "si",
    "strata",
    "vr_lwf",
    "zero_shot",
    "zscl",
)
