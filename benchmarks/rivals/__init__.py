"""Methods in the papers' tables that the service does not offer, and a registry of these and of its own methods.

A rival has a recipe (``configs/<name>.yaml``), like a method in :mod:`trainer.methods`, and a class in the module of
its family.
"""

from __future__ import annotations

from trainer.methods.registry import MethodRegistry

_FAMILIES = {
    "baselines": ("base_moco", "joint"),
    "distillation": ("lwf", "vr_lwf", "zscl"),
    "replay_methods": ("ctp_er", "der", "er", "icarl", "lucir", "lump"),
    "weight_penalties": ("afec", "ewc", "mas", "rwalk", "si"),
}
_REGISTRY = MethodRegistry(
    "trainer.methods",
    "benchmarks.rivals",
    modules={name: family for family, names in _FAMILIES.items() for name in names},
)
METHODS, configure, start_method = _REGISTRY.methods, _REGISTRY.configure, _REGISTRY.start_method
