"""Names of environment variables: settings, and those that belong to other programs.

An unknown variable with the prefix ``CINESTRATA_`` is an error: a misspelled setting would be ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from pydantic import BaseModel

OTHER_VARIABLES = frozenset(
    {
        "CINESTRATA_URL",  # the command-line option --url
        "CINESTRATA_MEDIA",  # Docker Compose, from .env
        "CINESTRATA_WEIGHTS",
        "CINESTRATA_BIND",
        "CINESTRATA_TEST_MILVUS_URI",  # the test suite
    }
)
"""Variables that are not settings but may be in a process's environment."""

# For a service whose name begins with "cinestrata", Kubernetes sets variables like these.
_SERVICE_LINK = re.compile(r"CINESTRATA_(\w+_)?(SERVICE_(HOST|PORT)|PORT(_\d+_(TCP|UDP|SCTP)|=\w+://))")


def variable_name(settings_class: type[BaseModel], location: Sequence[str | int]) -> str:
    """Name a setting's environment variable.

    Args:
        location: Location in pydantic's ``ValidationError``; parts below a leaf setting are ignored.
    """
    names: list[str] = []
    model: type[BaseModel] | None = settings_class
    for part in location:
        if model is None or part not in model.model_fields:
            break
        names.append(str(part).upper())
        kind = model.model_fields[part].annotation
        model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return f"CINESTRATA_{'__'.join(names)}"


def explain_unknown_variable(settings_class: type[BaseModel], name: str, value: str) -> str | None:
    """Explain an unknown variable; None for settings and other programs' variables.

    Args:
        name: Variable name, in upper case.
    """
    if not name.startswith("CINESTRATA_") or name in OTHER_VARIABLES:
        return None
    valid = set(_variable_names(settings_class))
    if name in valid or _SERVICE_LINK.match(f"{name}={value}"):
        return None
    # The common prefix would make all names look similar.
    names = sorted(each.removeprefix("CINESTRATA_") for each in valid | OTHER_VARIABLES)
    closest = get_close_matches(name.removeprefix("CINESTRATA_"), names, n=1)
    if closest:
        return f"{name} is not a setting: use CINESTRATA_{closest[0]}, or remove it"
    return f"{name} is not a setting: remove it (docs/configuration.md lists the settings)"


def _variable_names(model: type[BaseModel], prefix: str = "CINESTRATA_") -> Iterator[str]:
    """List the variables of a model's fields. A nested model also has one of its own, whose value is JSON."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name.upper()}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _variable_names(field.annotation, f"{prefix}{name.upper()}__")
