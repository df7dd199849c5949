"""A protocol: what is learned in which order, with which recipe, and what is measured. StrictModel, read from a file.

The files are in ``benchmarks/protocols/``; the path of a file of one's own does as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from benchmarks.data.protocol_sources import Source, StrictModel
from benchmarks.errors import ProtocolError
from benchmarks.learning.method_variants import MethodVariant
from models.routing.defaults import DEFAULT_PRIOR

__all__ = ["Protocol", "load_protocol", "protocol_names"]

Scalar = bool | int | float | str


class Protocol(StrictModel):
    """What a file in ``benchmarks/protocols/`` says."""

    name: str
    title: str
    source: Source
    backbone: str = "tiny"
    frames: int | None = Field(default=None, ge=1, description="of a video; None: what the backbone wants")
    queries: Literal["first", "all"] = Field(
        default="first", description="which captions of a held-out video are asked"
    )
    prior: float = Field(
        default=DEFAULT_PRIOR,
        ge=0,
        description="of routing in the union gallery; 0 merges raw cosines, as in the papers",
    )
    tasks: int | None = Field(default=None, ge=1, description="how many are learned; None: all")
    seeds: int = Field(default=3, ge=1)
    settings: dict[str, Scalar] = Field(default_factory=dict, description="of every method")
    recipes: dict[str, dict[str, Scalar]] = Field(
        default_factory=dict, description="of single methods, over those of all"
    )
    methods: tuple[MethodVariant, ...] = Field(default=(), description="none: every method there is")

    def settings_of(self, variant: MethodVariant) -> dict[str, Any]:
        """The settings of a method under this protocol, over those of its own recipe."""
        return {**self.settings, **self.recipes.get(variant.method, {}), **variant.settings}


def protocol_names() -> list[str]:
    """Those that come with the project."""
    folder = resources.files("benchmarks") / "protocols"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_protocol(name: str) -> Protocol:
    """A protocol by name, or by the path of its file.

    Raises:
        ProtocolError: there is none, or its file is wrong; names the field.
    """
    facts = _read(name)
    try:
        return Protocol.model_validate({"name": Path(name).stem, **facts})
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ProtocolError(f"protocol {name}: {'; '.join(wrong)}") from error


def _read(name: str) -> dict[str, Any]:
    """The file, over the one that it extends."""
    try:
        if name.endswith((".yaml", ".yml")):
            text = Path(name).read_text(encoding="utf-8")
        else:
            text = (resources.files("benchmarks") / "protocols" / f"{name}.yaml").read_text(encoding="utf-8")
        facts = yaml.safe_load(text)
    except OSError as error:
        raise ProtocolError(
            f"there is no protocol {name!r}: choose one of {', '.join(protocol_names())}, or give the path of "
            "a .yaml file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProtocolError(f"protocol {name} is not YAML: {error}") from error
    if not isinstance(facts, dict):
        raise ProtocolError(f"protocol {name} is not a mapping of fields to values")
    base = facts.pop("extends", None)
    return _over(_read(base), facts) if base else facts


def _over(base: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """``facts`` on top of ``base``, field by field inside fields."""
    merged = dict(base)
    for key, value in facts.items():
        inner = merged.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged
