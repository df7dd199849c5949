"""Benchmark protocols: tasks in order, method variants with their recipes, and settings for the evaluation.

A protocol is a YAML file in ``benchmarks/protocols/`` or at any other path.

On the command line, in protocol files and in tables, the short form of a variant is
``method@setting=value@setting=value``. ``reindex``, ``prior``, ``jointly`` and ``mixed_batches`` are settings of the
measurement, not of the method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmarks.data.protocol_sources import Source
from benchmarks.data.source_tasks import StrictModel
from benchmarks.errors import ProtocolError, validation_summary
from benchmarks.rivals import METHODS
from benchmarks.rivals.joint import Joint
from models.routing import DEFAULT_PRIOR

_MEASUREMENT_SETTINGS = ("reindex", "prior", "jointly", "mixed_batches")


class MethodVariant(BaseModel):
    """A method with settings: one row in the tables.

    Attributes:
        label: Name in tables; the short form by default.
        reindex: Whether all galleries are embedded again after every task, with the current encoder.
        prior: Routing prior in the global gallery; 0 merges raw cosines, None uses the protocol's.
        jointly: Whether the method learns the union of all tasks at once, as joint training does. This measures its
            architecture and recipe without the continual scheme.
        mixed_batches: Whether batches in joint training mix videos from all tasks. Without, a pair only has negatives
            from its own task, as in continual training (continual-cross-modal-retrieval, section 6).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    label: str = Field(min_length=1)
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    reindex: bool = False
    prior: float | None = Field(default=None, ge=0)
    jointly: bool = False
    mixed_batches: bool = True
    seeds: int | None = Field(default=None, ge=1)

    @property
    def is_joint(self) -> bool:
        """Whether all tasks are learned at once."""
        return self.jointly or self.method == Joint.name

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Accept the short form, and fill in the default label."""
        if isinstance(value, str):
            value = _parse_short_form(value)
        if isinstance(value, dict) and "label" not in value and isinstance(value.get("settings", {}), dict):
            measurement = {name: value[name] for name in _MEASUREMENT_SETTINGS if name in value}
            settings = {**value.get("settings", {}), **measurement}
            return {**value, "label": _short_form(str(value.get("method")), settings)}
        return value

    @model_validator(mode="after")
    def _batches_can_be_mixed(self) -> MethodVariant:
        method = METHODS.get(self.method)
        if not self.mixed_batches and method is not None and (method.is_closed_form or not self.is_joint):
            raise ValueError(
                "mixed_batches: false needs a method with batches of all tasks; add jointly: true"
            )
        return self

    def with_settings(self, overrides: Mapping[str, Any]) -> MethodVariant:
        """Copy the variant with more settings, which the label also names."""
        if not overrides:
            return self
        settings, measurement = _split_settings(overrides)
        fields = {**self.model_dump(), **measurement, "settings": {**self.settings, **settings}}
        return _validate({**fields, "label": _short_form(self.label, overrides)})


def select_variants(
    listed: Sequence[MethodVariant], names: Sequence[str] | None, overrides: Mapping[str, Any] | None = None
) -> list[MethodVariant]:
    """Select the variants to run.

    Args:
        listed: The protocol's variants; empty: every registered method.
        names: Labels of listed variants, or variants in the short form; None selects all listed ones.
        overrides: Settings to add to every selected variant.

    Raises:
        ProtocolError: A variant cannot be parsed, its method is unknown, or two variants have the same label.
    """
    by_label = {variant.label: variant for variant in listed}
    if names is None:
        selected = list(listed) or [parse_variant(name) for name in METHODS]
    else:
        selected = [by_label.get(name) or parse_variant(name) for name in names]
    selected = [variant.with_settings(overrides or {}) for variant in selected]
    for index, variant in enumerate(selected):
        if variant.method not in METHODS:
            raise ProtocolError(
                f"unknown method {variant.method!r}: choose one of {', '.join(sorted({*METHODS, *by_label}))}"
            )
        if any(variant.label == other.label for other in selected[:index]):
            raise ProtocolError(f"two method variants have the label {variant.label!r}; omit one of them")
    return selected


def parse_variant(text: str) -> MethodVariant:
    """Parse the short form ``method@setting=value@…``.

    Raises:
        ProtocolError: The text is not of that form, or a value is invalid.
    """
    return _validate(_parse_short_form(text))


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse ``setting=value``. A value that is valid JSON (a number, true, false) is decoded; any other is text.

    Raises:
        ProtocolError: The text is not of that form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ProtocolError(f"{text!r} is not setting=value; write it as in learning_rate=1e-4")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _parse_short_form(text: str) -> dict[str, Any]:
    method, *assignments = text.split("@")
    settings, measurement = _split_settings(dict(map(parse_assignment, assignments)))
    return {"method": method, "label": text, "settings": settings, **measurement}


def _short_form(name: str, settings: Mapping[str, Any]) -> str:
    return "@".join([name, *(f"{setting}={_format_value(value)}" for setting, value in settings.items())])


def _split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the method's settings from those of the measurement."""
    if "seed" in settings:
        raise ProtocolError("seed cannot be set: seeds are counted from 0; set their number with --seeds")
    measurement = {name: settings[name] for name in _MEASUREMENT_SETTINGS if name in settings}
    return {name: value for name, value in settings.items() if name not in measurement}, measurement


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)


def _validate(fields: Mapping[str, Any]) -> MethodVariant:
    try:
        return MethodVariant.model_validate(fields)
    except ValidationError as error:
        raise ProtocolError(f"{fields['label']}: {validation_summary(error)}") from error


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
        """Collect a variant's settings in this protocol; the method's recipe supplies all others."""
        return {**self.settings, **self.recipes.get(variant.method, {}), **variant.settings}


def protocol_names() -> list[str]:
    """List the project's protocols, sorted by name."""
    folder = resources.files("benchmarks") / "protocols"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_protocol(name: str) -> Protocol:
    """Load a protocol.

    Args:
        name: Name of one of the project's protocols, or path of a ``.yaml`` file.

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
