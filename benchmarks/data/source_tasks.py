"""A protocol's tasks before their frames are created, and the base of the models for protocol files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from benchmarks.data.frame_sources import FileFrames

Split = Literal["train", "val", "test"]
_MAX_LISTED_NAMES = 5  # in error messages


@dataclass(frozen=True)
class SourceVideo:
    """A video before its frames are created."""

    id: str
    captions: tuple[str, ...]
    split: Split | None  # None for a video that is only indexed
    frame_source: FileFrames


@dataclass(frozen=True)
class SourceTask:
    """A task before its frames are created."""

    id: str
    name: str
    videos: tuple[SourceVideo, ...]


class StrictModel(BaseModel):
    """Base of the models for protocol files: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def abbreviate(names: Iterable[str]) -> str:
    """Join the first names of a list for an error message."""
    listed = list(names)
    return ", ".join(listed[:_MAX_LISTED_NAMES]) + (" …" if len(listed) > _MAX_LISTED_NAMES else "")
