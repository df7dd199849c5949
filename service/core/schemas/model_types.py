"""Base classes and types that the request and response models share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints
from pydantic_core import PydanticCustomError

from media.sources.source_uris import redact_uri
from service.core.domain_names import MAX_NAME_CHARS, name_problem, normalize_name

__all__ = [
    "Identifier",
    "Matrix",
    "Name",
    "RequestModel",
    "ResponseModel",
    "Scalar",
    "ShownUri",
    "Uri",
]

Matrix = list[list[float | None]]  # rows are releases, columns are tasks; null where undefined
Scalar = bool | int | float | str | None


def _normalize_name(name: Any) -> Any:
    return normalize_name(name) if isinstance(name, str) else name


def _check_name(name: str) -> str:
    if (problem := name_problem(name)) is not None:
        message, hint = problem
        raise PydanticCustomError("name", "{problem}", {"problem": message, "hint": hint})
    return name


Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_NAME_CHARS),
    BeforeValidator(_normalize_name),
    AfterValidator(_check_name),
]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
ShownUri = Annotated[str, AfterValidator(redact_uri)]  # queries of URLs may contain tokens


class RequestModel(BaseModel):
    """A request body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ResponseModel(BaseModel):
    """A response body; immutable."""

    model_config = ConfigDict(frozen=True)
