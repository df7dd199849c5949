"""Base classes and types shared by request and response models."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from cinestrata_schemas.domain_names import MAX_NAME_CHARS, name_problem, normalize_name
from cinestrata_schemas.uris import redact_uri

Matrix = list[list[float | None]]  # rows are releases, columns are domains; null where undefined
Scalar = bool | int | float | str | None
_Item = TypeVar("_Item")


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
_READ = "file|location|speech|screen"
# What to read from videos: their own texts and facts, where they were recorded, speech, and text in the picture.
ReadSources = Annotated[
    str, StringConstraints(pattern=rf"^(off|({_READ})(,({_READ})){{0,{_READ.count('|')}}})$")
]
ShownUri = Annotated[str, AfterValidator(redact_uri)]  # URL queries may contain tokens


class _OpenChoice:
    """Accepts strings besides the documented choices."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema([handler(source), core_schema.str_schema()])

    def __get_pydantic_json_schema__(
        self, schema: core_schema.UnionSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(cast(CoreSchema, schema["choices"][0]))


Open = Annotated[_Item, _OpenChoice()]  # for responses: clients accept a later service's choices, too

_MAX_FIELDS = 64  # more than any request has


def optional(description: str) -> Any:
    """Declare a described field that is null unless it is given."""
    return Field(default=None, description=description)


class RequestModel(BaseModel):
    """A request body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def limit_fields(cls, value: Any) -> Any:
        """Refuse objects with very many fields, because each unknown or invalid one would add an error."""
        if isinstance(value, dict) and len(value) > _MAX_FIELDS:
            message = "The object has {count} fields; at most {limit} are read"
            raise PydanticCustomError("too_many_fields", message, {"count": len(value), "limit": _MAX_FIELDS})
        return value


# Without these limits, a body of a few megabytes becomes millions of errors, which take gigabytes and minutes.
RequestList = Annotated[list[_Item], Field(fail_fast=True)]  # only the first invalid item is reported
RequestSettings = Annotated[dict[str, Scalar], BeforeValidator(RequestModel.limit_fields)]


class ResponseModel(BaseModel):
    """A response body; immutable. Unknown fields from a later service are ignored."""

    model_config = ConfigDict(frozen=True)
