"""Benchmark protocols: the tasks of a published data set in order, the methods' recipes, and evaluation settings.

A protocol is a YAML file in ``benchmarks/protocols/`` or at any other path. If videos of its source are missing on this
machine, the error names them and the folder that they belong in.

On the command line and in tables, a variant is ``method@setting=value@setting=value``. ``prior`` is a setting of the
measurement, not of the method.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.data.frame_sources import FileFrames
from benchmarks.data.source_tasks import SourceTask, SourceVideo, Split
from benchmarks.errors import ProtocolError, abbreviate, validation_summary
from benchmarks.rivals import METHODS
from benchmarks.rivals.baselines import Joint
from index.arrays import batches
from models.routing import DEFAULT_PRIOR

_EXTENSIONS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".flv", ".3gp", ".gif")


class StrictModel(BaseModel):
    """Base of the models for protocol files: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CtvrSource(StrictModel):
    """Categories of a published data set, grouped into tasks (ctvr-ffa-tame, section 4.1)."""

    kind: Literal["ctvr"]
    facts: str  # file beside the protocols: videos, captions and clip times by category
    categories_per_task: int = Field(ge=1)
    captions: str | None = None  # file with the training captions, in the folder of the videos
    needs: str  # description of the files to download

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """Yield the first ``count`` tasks; raise ProtocolError if a file is missing, with its name and folder."""
        groups = self.category_groups()[:count]
        required = [row[0] for group in groups for category in group for _, row in category.rows]
        paths = self._files(videos, required)
        captions_by_video = self._training_captions(videos) if videos and self.captions else {}
        for number, group in enumerate(groups, 1):
            names = [category.name for category in group]
            rows = (row for category in group for row in category.rows)
            listed = [_clip(row, split, paths[row[0]], captions_by_video) for split, row in rows]
            name = ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]}"
            yield SourceTask(f"task-{number:02d}", name, tuple(listed))

    def category_groups(self) -> list[Sequence[_Category]]:
        """Group the categories into tasks, in file order."""
        packed = (resources.files("benchmarks") / "protocols" / self.facts).read_bytes()
        splits: tuple[Split, ...] = ("train", "test")
        categories = [
            _Category(fact["category"], [(split, row) for split in splits for row in fact[split]])
            for fact in map(json.loads, gzip.decompress(packed).decode().splitlines())
        ]
        return list(batches(categories, self.categories_per_task))

    def _files(self, folder: Path | None, required: Sequence[str]) -> dict[str, Path]:
        if folder is None:
            raise ProtocolError(
                f"this protocol needs {len(required)} videos; set their folder with --videos. It must contain, at any "
                f"depth, {self.needs}"
            )
        by_name = _by_stem(folder)
        places = {video: by_name.get(video) or by_name.get(video.removeprefix("v_")) for video in required}
        paths = {video: path for video, path in places.items() if path}
        missing = [video for video in required if video not in paths]
        if missing:
            raise ProtocolError(
                f"{folder} lacks {len(missing)} of {len(required)} videos: {abbreviate(missing)}. It must contain, at "
                f"any depth, {self.needs} The name of a file is the ID of the video with one of the extensions "
                f"{', '.join(_EXTENSIONS)}."
            )
        return paths

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


class _Category(NamedTuple):
    """A category and its videos by split, as rows ``[id]``, ``[id, caption]`` or ``[id, caption, start, end]``."""

    name: str
    rows: list[tuple[Split, list]]


def _clip(row: list, split: Split, path: Path, captions_of: Mapping[str, tuple[str, ...]]) -> SourceVideo:
    identifier, *more = row
    captions = tuple(more[:1]) or captions_of.get(identifier, ())
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


Scalar = bool | int | float | str


class MethodVariant(BaseModel):
    """A method with settings, one row in the tables. A prior of 0 merges raw cosines, and None uses the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    label: str = Field(min_length=1)
    settings: dict[str, Scalar] = Field(default_factory=dict)
    prior: float | None = Field(default=None, ge=0)

    @property
    def is_joint(self) -> bool:
        """Whether all tasks are learned at once."""
        return self.method == Joint.name


def select_variants(names: Sequence[str]) -> list[MethodVariant]:
    """Parse variants, such as ``finetune@epochs=2``; raise ProtocolError, also for unknown methods and equal labels."""
    selected = [parse_variant(name) for name in names]
    for index, variant in enumerate(selected):
        if variant.method not in METHODS:
            raise ProtocolError(f"unknown method {variant.method!r}: choose one of {', '.join(METHODS)}")
        if any(variant.label == other.label for other in selected[:index]):
            raise ProtocolError(f"two method variants have the label {variant.label!r}; omit one of them")
    return selected


def parse_variant(text: str) -> MethodVariant:
    """Parse ``method@setting=value@…``, where values are JSON or else texts; raise ProtocolError."""
    method, *assignments = text.split("@")
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise ProtocolError(f"{assignment!r} is not setting=value; write it as in learning_rate=1e-4")
        if name == "seed":
            raise ProtocolError("seed cannot be set: seeds are counted from 0; set their number with --seeds")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    prior = settings.pop("prior", None)
    try:
        return MethodVariant.model_validate(
            {"method": method, "label": text, "settings": settings, "prior": prior}
        )
    except ValidationError as error:
        raise ProtocolError(f"{text}: {validation_summary(error)}") from error


class Protocol(StrictModel):
    """Content of a protocol file."""

    name: str  # by default that of its file
    title: str  # in reports
    source: CtvrSource  # defines the tasks
    backbone: str
    frames: int | None = Field(default=None, ge=1)  # per video; None: the backbone's
    # routing prior in the global gallery; 0 merges raw cosines, as in the papers
    prior: float = Field(default=DEFAULT_PRIOR, ge=0)
    seeds: int = Field(default=3, ge=1)  # per method
    settings: dict[str, Scalar] = Field(default_factory=dict)  # of every method
    # of single methods, over those of every method
    recipes: dict[str, dict[str, Scalar]] = Field(default_factory=dict)

    def complete(self, variant: MethodVariant) -> MethodVariant:
        """Add the protocol's settings to a variant's; the method's recipe supplies all others."""
        settings = {**self.settings, **self.recipes.get(variant.method, {}), **variant.settings}
        prior = self.prior if variant.prior is None else variant.prior
        return variant.model_copy(update={"settings": settings, "prior": prior})


def protocol_names() -> list[str]:
    """List the project's protocols, sorted by name."""
    folder = resources.files("benchmarks") / "protocols"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_protocol(name: str) -> Protocol:
    """Load a protocol; raise ProtocolError, which names the field, if its file is missing or invalid."""
    fields = _read_fields(name)
    try:
        return Protocol.model_validate({"name": Path(name).stem, **fields})
    except ValidationError as error:
        raise ProtocolError(f"protocol {name}: {validation_summary(error)}") from error


def _read_fields(name: str) -> dict[str, Any]:
    """Read a protocol file's fields, merged over those of the protocol that it extends."""
    try:
        if name.endswith((".yaml", ".yml")):
            text = Path(name).read_text(encoding="utf-8")
        else:
            text = (resources.files("benchmarks") / "protocols" / f"{name}.yaml").read_text(encoding="utf-8")
        fields = yaml.safe_load(text)
    except OSError as error:
        raise ProtocolError(
            f"there is no protocol {name!r}: choose one of {', '.join(protocol_names())}, or give the path of "
            "a .yaml file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProtocolError(f"protocol {name} is not YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"protocol {name} is not a mapping of fields to values")
    base = fields.pop("extends", None)
    return _merge(_read_fields(base), fields) if base else fields


def _merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; values in ``override`` replace those in ``base``."""
    merged = dict(base)
    for key, value in override.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged
