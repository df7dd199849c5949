"""Error responses (RFC 9457)."""

from __future__ import annotations

from pydantic import Field

from cinestrata_schemas.model_types import ResponseModel


class ProblemField(ResponseModel):
    """An invalid field with a message and a hint for its correction."""

    field: str
    message: str
    hint: str = ""


class Problem(ResponseModel):
    """An error response."""

    type: str = Field(description="URI that identifies the class of errors; it never changes.")
    title: str = Field(description="Name of the class of errors.")
    status: int = Field(description="Status of the response.")
    detail: str = Field(description="Description of this error; of several invalid fields, of the first.")
    instance: str = Field(description="Path of the request.")
    errors: list[ProblemField] = Field(default=[], description="Invalid fields, at most 100.")
