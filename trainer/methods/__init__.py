"""Continual-learning methods: one module and one recipe (``configs/<name>.yaml``) per method."""

from __future__ import annotations

from trainer.methods.base import Method, MethodConfig, MethodError, MethodMismatch
from trainer.methods.registry import METHODS, configure, start_method

__all__ = ["METHODS", "Method", "MethodConfig", "MethodError", "MethodMismatch", "configure", "start_method"]
