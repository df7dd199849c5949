"""Error classes, and the wording of invalid fields."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from service.core import errors
from service.core.errors import InvalidInput


def test_field_path_has_the_syntax_of_code() -> None:
    assert errors.field_path(("videos", 3, "captions", 0)) == "videos[3].captions[0]"
    assert errors.field_path(()) == "body"
    wrong = errors.InvalidInput.of(
        [errors.FieldError("a", "Wrong.", "Use b."), errors.FieldError("b", "Wrong.")]
    )
    assert str(wrong) == "a: Wrong. Use b. (1 more)"


class Form(BaseModel):
    """One field of each kind."""

    count: Annotated[int, Field(ge=1, le=9)] = 1
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    state: Literal["ready", "failed"] = "ready"
    name: Annotated[str, Field(min_length=2, max_length=3)] = "ab"
    at: datetime | None = None
    flag: bool = False


@pytest.mark.parametrize(
    ("field", "value", "message", "hint"),
    [
        ("count", 0, "0 is below the minimum 1.", "Send at least 1."),
        ("count", 10, "10 is above the maximum 9.", "Send at most 9."),
        ("count", "many", "'many' is not an integer.", "Send a whole number."),
        ("count", "x" * 10_000, f"'{'x' * 58}… is not an integer.", "Send a whole number."),
        ("count", None, "None is not an integer.", "Send a whole number."),
        ("share", 0, "0 is not above 0.0.", "Send more than 0.0."),
        ("share", [1], "The value is not a number.", "Send a number."),
        (
            "state",
            "redy",
            "'redy' is not a known value.",
            "Did you mean 'ready'? Send one of 'ready' or 'failed'.",
        ),
        ("name", "a", "The text is too short.", "Send at least 2 characters, or omit the field."),
        ("name", "abcd", "The text is too long.", "Send at most 3 characters."),
        ("flag", "maybe", "'maybe' is not a boolean.", "Send true or false."),
        ("at", "soon", "'soon' is not a time.", "Send a date or time in ISO 8601"),
    ],
)
def test_errors_state_the_value_and_a_hint(field: str, value: object, message: str, hint: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Form.model_validate({field: value})
    (error,) = InvalidInput.from_pydantic(raised.value.errors()).errors
    assert (error.field, error.message) == (field, message)
    assert error.hint.startswith(hint)
