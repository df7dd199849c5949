"""Benchmark protocols: tasks and their order, recipes of the methods, and settings of the evaluation.

A protocol is a YAML file in ``benchmarks/protocols/`` or at any other path.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from benchmarks.data.protocol_sources import Source
from benchmarks.data.source_tasks import StrictModel
from benchmarks.errors import ProtocolError, validation_summary
from benchmarks.learning.method_variants import MethodVariant
from models.routing import DEFAULT_PRIOR

Scalar = bool | int | float | str


class Protocol(StrictModel):
    """Content of a protocol file."""

    name: str = Field(description="Name of the protocol; by default that of its file.")
    title: str = Field(description="Title in reports.")
    source: Source = Field(description="Source of the videos, which defines the tasks.")
    backbone: str = Field(default="tiny", description="Name of the backbone.")
    frames: int | None = Field(
        default=None, ge=1, description="Frames per video; None uses the backbone's default."
    )
    queries: Literal["first", "all"] = Field(
        default="first", description="Captions of a held-out video that are used as queries."
    )
    prior: float = Field(
        default=DEFAULT_PRIOR,
        ge=0,
        description="Routing prior in the global gallery; 0 merges raw cosines, as in the papers.",
    )
    tasks: int | None = Field(default=None, ge=1, description="Number of tasks to learn; None learns all.")
    seeds: int = Field(default=3, ge=1, description="Number of seeds per method.")
    settings: dict[str, Scalar] = Field(default_factory=dict, description="Settings of every method.")
    recipes: dict[str, dict[str, Scalar]] = Field(
        default_factory=dict, description="Settings of single methods, over those of every method."
    )
    methods: tuple[MethodVariant, ...] = Field(
        default=(), description="Method variants; empty: every registered method."
    )

    def settings_of(self, variant: MethodVariant) -> dict[str, Any]:
        """Settings of a method variant in this protocol; the recipe of the method supplies all others."""
        return {**self.settings, **self.recipes.get(variant.method, {}), **variant.settings}


def protocol_names() -> list[str]:
    """Names of the protocols of the project, sorted."""
    folder = resources.files("benchmarks") / "protocols"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_protocol(name: str) -> Protocol:
    """Load a protocol.

    Args:
        name: Name of a protocol of the project, or path of a ``.yaml`` file.

    Raises:
        ProtocolError: The file does not exist or is invalid; the message names the field.
    """
    fields = _read_fields(name)
    try:
        return Protocol.model_validate({"name": Path(name).stem, **fields})
    except ValidationError as error:
        raise ProtocolError(f"protocol {name}: {validation_summary(error)}") from error


def _read_fields(name: str) -> dict[str, Any]:
    """Fields of a protocol file, merged over those of the protocol it extends."""
    try:
        if name.endswith((".yaml", ".yml")):
            text = Path(name).read_text(encoding="utf-8")
        else:
            text = (resources.files("benchmarks") / "protocols" / f"{name}.yaml").read_text(encoding="utf-8")
        fields = yaml.safe_load(text)
    except OSError as error:
        raise ProtocolError(
            f"there is no protocol {name!r}: choose one of {', '.join(protocol_names())}, or give the path of "
            "a .yaml file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProtocolError(f"protocol {name} is not YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"protocol {name} is not a mapping of fields to values")
    base = fields.pop("extends", None)
    return _merge(_read_fields(base), fields) if base else fields


def _merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; values of ``override`` replace those of ``base``."""
    merged = dict(base)
    for key, value in override.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged
