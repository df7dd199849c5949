"""Benchmark protocols: tasks in order, the methods' recipes, and settings for the evaluation.

A protocol is a YAML file in ``benchmarks/protocols/`` or at any other path.

On the command line and in tables, a variant is ``method@setting=value@setting=value``. ``prior`` is a setting of the
measurement, not of the method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.data.protocol_sources import CtvrSource, StrictModel
from benchmarks.errors import ProtocolError, validation_summary
from benchmarks.rivals import METHODS
from benchmarks.rivals.baselines import Joint
from models.routing import DEFAULT_PRIOR

Scalar = bool | int | float | str


class MethodVariant(BaseModel):
    """A method with settings: one row in the tables.

    Attributes:
        label: Name in tables: the short form.
        prior: Routing prior in the global gallery; 0 merges raw cosines, None uses the default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    label: str = Field(min_length=1)
    settings: dict[str, Scalar] = Field(default_factory=dict)
    prior: float | None = Field(default=None, ge=0)

    @property
    def is_joint(self) -> bool:
        """Whether all tasks are learned at once."""
        return self.method == Joint.name


def select_variants(names: Sequence[str]) -> list[MethodVariant]:
    """Parse variants, for example ``finetune@epochs=2``.

    Raises:
        ProtocolError: A variant cannot be parsed, its method is unknown, or two variants have the same label.
    """
    selected = [parse_variant(name) for name in names]
    for index, variant in enumerate(selected):
        if variant.method not in METHODS:
            raise ProtocolError(
                f"unknown method {variant.method!r}: choose one of {', '.join(sorted(METHODS))}"
            )
        if any(variant.label == other.label for other in selected[:index]):
            raise ProtocolError(f"two method variants have the label {variant.label!r}; omit one of them")
    return selected


def parse_variant(text: str) -> MethodVariant:
    """Parse the short form ``method@setting=value@…``. A value that is valid JSON is decoded; any other is text.

    Raises:
        ProtocolError: The text is not of that form, or a value is invalid.
    """
    method, *assignments = text.split("@")
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise ProtocolError(f"{assignment!r} is not setting=value; write it as in learning_rate=1e-4")
        if name == "seed":
            raise ProtocolError("seed cannot be set: seeds are counted from 0; set their number with --seeds")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    prior = settings.pop("prior", None)
    try:
        return MethodVariant.model_validate(
            {"method": method, "label": text, "settings": settings, "prior": prior}
        )
    except ValidationError as error:
        raise ProtocolError(f"{text}: {validation_summary(error)}") from error


class Protocol(StrictModel):
    """Content of a protocol file."""

    name: str = Field(description="Name of the protocol; by default that of its file.")
    title: str = Field(description="Title in reports.")
    source: CtvrSource = Field(description="Source of the videos, which defines the tasks.")
    backbone: str = Field(description="Name of the backbone.")
    frames: int | None = Field(
        default=None, ge=1, description="Frames per video; None uses the backbone's default."
    )
    prior: float = Field(
        default=DEFAULT_PRIOR,
        ge=0,
        description="Routing prior in the global gallery; 0 merges raw cosines, as in the papers.",
    )
    seeds: int = Field(default=3, ge=1, description="Number of seeds per method.")
    settings: dict[str, Scalar] = Field(default_factory=dict, description="Settings of every method.")
    recipes: dict[str, dict[str, Scalar]] = Field(
        default_factory=dict, description="Settings of single methods, over those of every method."
    )

    def complete(self, variant: MethodVariant) -> MethodVariant:
        """Add the protocol's settings to a variant's; the method's recipe supplies all others."""
        settings = {**self.settings, **self.recipes.get(variant.method, {}), **variant.settings}
        prior = self.prior if variant.prior is None else variant.prior
        return variant.model_copy(update={"settings": settings, "prior": prior})


def protocol_names() -> list[str]:
    """List the project's protocols, sorted by name."""
    folder = resources.files("benchmarks") / "protocols"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_protocol(name: str) -> Protocol:
    """Load a protocol.

    Raises:
        ProtocolError: The file does not exist or is invalid; the message names the field.
    """
    fields = _read_fields(name)
    try:
        return Protocol.model_validate({"name": Path(name).stem, **fields})
    except ValidationError as error:
        raise ProtocolError(f"protocol {name}: {validation_summary(error)}") from error


def _read_fields(name: str) -> dict[str, Any]:
    """Read a protocol file's fields, merged over those of the protocol that it extends."""
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
    """Merge nested mappings; values in ``override`` replace those in ``base``."""
    merged = dict(base)
    for key, value in override.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged
