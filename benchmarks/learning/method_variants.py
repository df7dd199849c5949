"""What a protocol is run with: methods, and variants of them by their settings.

On the command line and in a protocol's file a variant is written ``method@setting=value@setting=value``, and that
is also what tables call it. ``reindex`` and ``prior`` are settings of the measurement, not of the method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmarks.errors import ProtocolError
from trainer.methods import METHODS

__all__ = ["MethodVariant", "parse_assignment", "parse_variant", "select_variants"]

_MEASUREMENT = ("reindex", "prior")


class MethodVariant(BaseModel):
    """A row of the tables.

    Attributes:
        label: what it is called: the method and what is set, unless a protocol's file says otherwise.
        settings: of the method, over those of the protocol.
        reindex: embed all galleries again with the current encoder after every task, instead of keeping the vectors.
        prior: of routing in the union gallery; 0 merges raw cosines. The protocol's, if None.
        seeds: how many runs; the protocol's, if None.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    label: str = Field(min_length=1)
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    reindex: bool = False
    prior: float | None = Field(default=None, ge=0)
    seeds: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, facts: Any) -> Any:
        """From the short form, and with a label."""
        if isinstance(facts, str):
            facts = _long_form(facts)
        if isinstance(facts, dict) and "label" not in facts and isinstance(facts.get("settings", {}), dict):
            own = {name: facts[name] for name in _MEASUREMENT if name in facts}
            return {**facts, "label": _label(str(facts.get("method")), {**facts.get("settings", {}), **own})}
        return facts

    def with_settings(self, more: Mapping[str, Any]) -> MethodVariant:
        """The variant with further settings, which its label then names."""
        if not more:
            return self
        settings, own = _sorted_out(more)
        facts = {**self.model_dump(), **own, "settings": {**self.settings, **settings}}
        return _validated({**facts, "label": _label(self.label, more)})


def select_variants(
    listed: Sequence[MethodVariant], names: Sequence[str] | None, overrides: Mapping[str, Any] | None = None
) -> list[MethodVariant]:
    """The variants to run.

    Args:
        listed: those of the protocol; empty means every method there is.
        names: labels of these, or variants in the short form; None for all of the listed.
        overrides: settings for every chosen variant.

    Raises:
        ProtocolError: an variant that cannot be read, an unknown method, or a label that two variants share.
    """
    known = {variant.label: variant for variant in listed}
    if names is None:
        chosen = list(listed) or [parse_variant(name) for name in METHODS]
    else:
        chosen = [known.get(name) or parse_variant(name) for name in names]
    chosen = [variant.with_settings(overrides or {}) for variant in chosen]
    for index, variant in enumerate(chosen):
        if variant.method not in METHODS:
            raise ProtocolError(
                f"unknown method {variant.method!r}: choose one of {', '.join(sorted({*METHODS, *known}))}"
            )
        if any(variant.label == other.label for other in chosen[:index]):
            raise ProtocolError(f"two methods are called {variant.label!r}; leave one out")
    return chosen


def parse_variant(text: str) -> MethodVariant:
    """``method@setting=value@…``.

    Raises:
        ProtocolError: says what cannot be read.
    """
    return _validated(_long_form(text))


def parse_assignment(text: str) -> tuple[str, Any]:
    """``setting=value``; numbers, true and false are read as what they are, everything else as text.

    Raises:
        ProtocolError: it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ProtocolError(f"{text!r} is not setting=value; write it as in learning_rate=1e-4")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _long_form(text: str) -> dict[str, Any]:
    method, *assignments = text.split("@")
    settings, own = _sorted_out(dict(map(parse_assignment, assignments)))
    return {"method": method, "label": text, "settings": settings, **own}


def _sorted_out(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the method, and of the measurement."""
    if "seed" in given:
        raise ProtocolError("seed: seeds are counted from 0; say how many with --seeds")
    own = {name: given[name] for name in _MEASUREMENT if name in given}
    return {name: value for name, value in given.items() if name not in own}, own


def _label(name: str, settings: Mapping[str, Any]) -> str:
    return "@".join([name, *(f"{setting}={_spelled(value)}" for setting, value in settings.items())])


def _spelled(value: Any) -> str:
    """As one would type it."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)


def _validated(facts: Mapping[str, Any]) -> MethodVariant:
    try:
        return MethodVariant.model_validate(facts)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ProtocolError(f"{facts['label']}: {'; '.join(wrong)}") from error
