"""Requests and responses about previewing a task made from files on a client's machine."""

from __future__ import annotations

from typing import Any

from pydantic import Base64Bytes, Field

from cinestrata_schemas.model_types import RequestList, RequestModel, ResponseModel, optional
from cinestrata_schemas.tasks import VideoSpec


class LocalFile(RequestModel):
    """A file on the client's machine."""

    path: str = Field(min_length=1, max_length=4096, description="Path, relative to the selected folder.")
    size: int = Field(ge=0, le=2**53, description="Size in bytes.")
    upload: str | None = Field(default=None, max_length=64, description="Its upload to continue, if any.")


class LocalText(RequestModel):
    """Content of a caption table or sidecar file on the client's machine."""

    path: str = Field(min_length=1, max_length=4096, description="Path, relative to the selected folder.")
    content: Base64Bytes = Field(description="File content in Base64.")


class PreviewRequest(RequestModel):
    """Selected files, and the domain for their videos."""

    name: str | None = optional("Name of a new domain.")
    into: str | None = optional("ID of the task whose domain receives the videos.")
    method: str | None = optional("Learning method of a new domain.")
    settings: dict[str, Any] | None = optional("Method settings.")
    files: RequestList[LocalFile] = Field(max_length=200_000, description="All selected files.")
    texts: RequestList[LocalText] = Field(
        default_factory=list, max_length=200_000, description="Caption table and sidecar files."
    )
    table: str | None = optional(
        "Path of the caption table in `texts` (`.csv`, `.tsv`, `.json` or `.jsonl`); all selected tables if omitted."
    )
    encoding: str = Field(default="utf-8", max_length=50, description="Encoding of the text files.")
    captions_from_names: bool = Field(
        default=False, description="Whether to use the file name as the caption of a video without captions."
    )


class OmittedPath(ResponseModel):
    """A file or table row that is left out, with the reason."""

    path: str
    reason: str


class CaptionTable(ResponseModel):
    """A caption table recognized by its content."""

    path: str
    format: str = Field(description="Name of the recognized format, such as MSR-VTT.")
    delimiter: str | None = Field(description="Cell delimiter; null for JSON.")
    encoding: str
    videos: int = Field(description="Number of files that the table names.")


class PreviewProblem(ResponseModel):
    """A reason why the task would be refused. `field` names a field of the task, or a file and its line."""

    field: str
    message: str
    hint: str


class UploadPreview(ResponseModel):
    """The task that the selected files would become."""

    domain: str | None = Field(description="Name of the domain; null if it has none yet.")
    is_append: bool = Field(description="Whether the videos are appended to a learned domain.")
    videos: list[VideoSpec] = Field(description="Videos of the task; `uri` is the path of the selected file.")
    bytes: int = Field(description="Total size of the videos.")
    captions: int = Field(description="Total number of captions.")
    transcripts: int = Field(description="Number of videos with a transcript.")
    without_captions: list[str] = Field(description="Paths of the videos without captions.")
    missing: list[OmittedPath] = Field(description="Table rows whose file is not selected.")
    skipped: list[OmittedPath] = Field(description="Selected files that are not uploaded.")
    tables: list[CaptionTable] = Field(description="Caption tables that supply the captions.")
    suggested_encoding: str | None = Field(
        description="Encoding that would work, if a text file cannot be read with the requested one."
    )
    problems: list[PreviewProblem] = Field(description="Problems to solve first, at most 20.")
