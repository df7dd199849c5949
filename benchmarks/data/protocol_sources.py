"""Splits of a published data set: a source creates a protocol's tasks from the fields of the protocol file.

If videos are missing on this machine, the error names them and the folder that they belong in.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.data.frame_sources import FileFrames
from benchmarks.data.source_tasks import SourceTask, SourceVideo, Split
from benchmarks.errors import ProtocolError, abbreviate

_EXTENSIONS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".flv", ".3gp", ".gif")


class StrictModel(BaseModel):
    """Base of the models for protocol files: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CtvrSource(StrictModel):
    """Categories of a published data set, grouped into tasks (ctvr-ffa-tame, section 4.1)."""

    kind: Literal["ctvr"]
    facts: str = Field(
        description="File in the folder of the protocols: videos, captions and clip times by category."
    )
    categories_per_task: int = Field(ge=1)
    captions: str | None = Field(
        default=None, description="File with the training captions, in the folder of the videos."
    )
    needs: str = Field(description="Description of the files to download.")

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """Yield the first ``count`` tasks.

        Raises:
            ProtocolError: A file is missing; the message names it and its folder.
        """
        groups = self.category_groups()[:count]
        required = [row[0] for group in groups for category in group for _, row in category.rows()]
        found = self._files(videos, required)
        captions_by_video = self._training_captions(videos) if videos and self.captions else {}
        for number, group in enumerate(groups, 1):
            names = [category.name for category in group]
            listed = [
                _clip(row, split, found[row[0]], captions_by_video)
                for category in group
                for split, row in category.rows()
            ]
            name = ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]}"
            yield SourceTask(f"task-{number:02d}", name, tuple(listed))

    def category_groups(self) -> list[list[_Category]]:
        """Group the categories into tasks, in file order."""
        packed = (resources.files("benchmarks") / "protocols" / self.facts).read_bytes()
        lines = gzip.decompress(packed).decode().splitlines()
        categories = [
            _Category(fact["category"], fact["train"], fact["test"]) for fact in map(json.loads, lines)
        ]
        size = self.categories_per_task
        return [categories[start : start + size] for start in range(0, len(categories), size)]

    def _files(self, folder: Path | None, required: Sequence[str]) -> dict[str, Path]:
        if folder is None:
            raise ProtocolError(
                f"this protocol needs {len(required)} videos; set their folder with --videos. It must contain, at any "
                f"depth, {self.needs}"
            )
        by_name = _by_stem(folder)
        places = {video: by_name.get(video) or by_name.get(video.removeprefix("v_")) for video in required}
        found = {video: path for video, path in places.items() if path}
        missing = [video for video in required if video not in found]
        if missing:
            raise ProtocolError(
                f"{folder} lacks {len(missing)} of {len(required)} videos: {abbreviate(missing)}. It must contain, at "
                f"any depth, {self.needs} The name of a file is the ID of the video with one of the extensions "
                f"{', '.join(_EXTENSIONS)}."
            )
        return found

    def _training_captions(self, folder: Path) -> dict[str, tuple[str, ...]]:
        name = str(self.captions)
        path = next(iter(sorted(folder.rglob(name))), None)
        if path is None:
            raise ProtocolError(
                f"{folder} lacks {name} with the training captions. It must contain {self.needs}"
            )
        captions_by_video: dict[str, list[str]] = {}
        try:
            for sentence in json.loads(path.read_text(encoding="utf-8"))["sentences"]:
                captions_by_video.setdefault(sentence["video_id"], []).append(sentence["caption"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(
                f"{path} must be JSON with a list 'sentences' of objects with video_id and caption"
            ) from error
        return {video: tuple(captions) for video, captions in captions_by_video.items()}


@dataclass(frozen=True)
class _Category:
    """A category and its videos, as rows ``[id]``, ``[id, caption]`` or ``[id, caption, start, end]``."""

    name: str
    train: list[list]
    test: list[list]

    def rows(self) -> Iterator[tuple[Split, list]]:
        yield from (("train", row) for row in self.train)
        yield from (("test", row) for row in self.test)


def _clip(
    row: list, split: Split, path: Path, captions_by_video: Mapping[str, tuple[str, ...]]
) -> SourceVideo:
    identifier, *more = row
    captions = tuple(more[:1]) or captions_by_video.get(identifier, ())
    if not captions:
        raise ProtocolError(
            f"the file of training captions has none for {identifier}; download the complete file"
        )
    span = (more[1], more[2]) if len(more) == 3 else None
    return SourceVideo(identifier, captions, split, FileFrames(path, span))


def _by_stem(folder: Path) -> dict[str, Path]:
    """Find video files at any depth, by their name up to the first dot."""
    if not folder.is_dir():
        raise ProtocolError(f"{folder} is not a folder; set the folder of the videos with --videos")
    files = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _EXTENSIONS)
    return {path.name.split(".")[0]: path for path in files}
