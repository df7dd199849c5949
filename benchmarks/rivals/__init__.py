"""Methods in the papers' tables that the service does not offer, and a registry of these and of its own methods.

A rival has a module and a recipe (``configs/<name>.yaml``), like a method in :mod:`trainer.methods`.
"""

from __future__ import annotations

from trainer.methods.registry import MethodRegistry

_REGISTRY = MethodRegistry("trainer.methods", "benchmarks.rivals")
METHODS, configure, start_method = _REGISTRY.methods, _REGISTRY.configure, _REGISTRY.start_method
