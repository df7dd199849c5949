"""Base of all models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Model"]


class Model(BaseModel):
    """A request or an answer. Fields of later versions of the service are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), defer_build=True)
