"""Parsing of JSON bodies that may be large, outside of the event loop."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from service.core.errors import InvalidInput

__all__ = ["parse_json"]

_Model = TypeVar("_Model", bound=BaseModel)


def parse_json(model: type[_Model], body: bytes) -> _Model:
    """Return the model of a JSON body.

    Raises:
        InvalidInput: the body is not JSON, or a field is invalid.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            reason = str(first["ctx"]["error"])
            raise InvalidInput.at("body", f"The body is not JSON: {reason}.", "Send a JSON object.") from None
        raise InvalidInput.from_pydantic(error.errors(include_url=False)) from None
