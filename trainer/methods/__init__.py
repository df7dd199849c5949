"""Continual-learning methods that a task can choose, each with a module and a recipe (``configs/<name>.yaml``)."""

from __future__ import annotations

from trainer.methods.base import Method, MethodConfig, MethodError
from trainer.methods.registry import MethodRegistry

__all__ = ["METHODS", "Method", "MethodConfig", "MethodError", "can_continue", "configure", "start_method"]

_REGISTRY = MethodRegistry("trainer.methods")
METHODS, configure = _REGISTRY.methods, _REGISTRY.configure
can_continue, start_method = _REGISTRY.can_continue, _REGISTRY.start_method
