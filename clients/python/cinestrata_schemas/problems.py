"""Error responses (RFC 9457)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, computed_field

from cinestrata_schemas.model_types import Open, ResponseModel, optional

ActionName = Literal[
    "add_domain",
    "append_videos",
    "delete_task",
    "list_releases",
    "list_syncs",
    "retry_task",
    "serve_release",
    "show_task",
]

_REQUESTS: dict[str, str] = {
    "add_domain": "POST /tasks",
    "append_videos": "POST /tasks/{id}/videos",
    "delete_task": "DELETE /tasks/{id}",
    "list_releases": "GET /releases",
    "list_syncs": "GET /syncs",
    "retry_task": "POST /tasks/{id}/retry",
    "serve_release": "POST /releases/{id}/serve",
    "show_task": "GET /tasks/{id}",
}


class Action(ResponseModel):
    """What the reader of an error may do next. Each front end words it as a request, command or control."""

    name: Open[ActionName]
    id: str = Field(default="", description="ID of the task or release that it concerns.")
    body: dict[str, Any] | None = optional("Request body; without it, the action would fail again.")

    @computed_field(description="API request.")  # type: ignore[prop-decorator]
    @property
    def request(self) -> str:
        """The API request, such as ``POST /tasks/tsk_1/retry``; empty for an unknown action."""
        return _REQUESTS.get(self.name, "").format(id=self.id)


class ProblemField(ResponseModel):
    """An invalid field with a message and a hint on how to correct it."""

    field: str
    message: str
    hint: str = ""


class Problem(ResponseModel):
    """An error response."""

    type: str = Field(description="URI of the error class; it never changes.")
    title: str = Field(description="Name of the error class.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="Description of this error; if several fields are invalid, of the first.")
    instance: str = Field(description="Request path.")
    errors: list[ProblemField] = Field(default=[], description="Invalid fields, at most 100.")
    remedy: Action | None = optional("What the caller may do next.")
