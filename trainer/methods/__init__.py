"""Continual-learning methods that a task can choose, each with a module and a recipe (``configs/<name>.yaml``)."""

from __future__ import annotations

from trainer.methods.base import Method, MethodConfig, MethodError, MethodMismatch
from trainer.methods.registry import MethodRegistry

__all__ = ["METHODS", "Method", "MethodConfig", "MethodError", "MethodMismatch", "configure", "start_method"]

_REGISTRY = MethodRegistry("trainer.methods")
METHODS, configure, start_method = _REGISTRY.methods, _REGISTRY.configure, _REGISTRY.start_method
