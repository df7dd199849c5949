"""Where the videos of a protocol come from: the video world, splits of published data sets, folders with manifests.

Each source turns the facts of a protocol's file into tasks of videos whose frames can be had. What is not on this
machine is told by name, with the place where it has to be put.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.data.folder_manifest import MANIFEST_NAMES, ManifestEntry, find_manifest, read_manifest
from benchmarks.data.frame_sources import FileFrames, FrameSource, WorldFrames
from benchmarks.data.world import make_domain
from benchmarks.errors import ProtocolError

__all__ = [
    "CtvrSource",
    "DatasetsSource",
    "FolderSource",
    "Source",
    "SourceTask",
    "SourceVideo",
    "StrictModel",
    "WorldSource",
]

Split = Literal["train", "val", "test"]
_NAMED = 5  # files that a message names
_KINDS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".flv", ".3gp", ".gif")


@dataclass(frozen=True)
class SourceVideo:
    """A video before its frames are there."""

    id: str
    captions: tuple[str, ...]
    split: Split | None  # None: only indexed
    frame_source: FrameSource
    category: str | None = None  # where the data has classes


@dataclass(frozen=True)
class SourceTask:
    """One task of a protocol."""

    id: str
    name: str
    videos: tuple[SourceVideo, ...]


class StrictModel(BaseModel):
    """A part of a protocol's file; a word that it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorldSource(StrictModel):
    """Domains of the video world; counts are per category."""

    kind: Literal["world"]
    domains: tuple[str, ...] = Field(min_length=1)
    seed: int = Field(ge=0, description="of the world: another one gives other videos of the same domains")
    train: int = Field(ge=1)
    val: int = Field(ge=0)
    test: int = Field(ge=1)
    categories: int = Field(ge=1)
    captions: int = Field(ge=1, description="of every video")

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """The first ``count`` tasks; nothing is needed of anybody."""
        if videos is not None:
            raise ProtocolError("this protocol draws its own videos; leave --videos out")
        for domain in self.domains[:count]:
            try:
                clips = make_domain(
                    domain,
                    seed=self.seed,
                    train=self.train,
                    val=self.val,
                    test=self.test,
                    categories=self.categories,
                    captions=self.captions,
                )
            except ValueError as error:
                raise ProtocolError(f"source: {error}") from error
            drawn = (SourceVideo(c.id, c.captions, c.split, WorldFrames(c), c.category) for c in clips)  # type: ignore[arg-type]
            yield SourceTask(domain, domain, tuple(drawn))


class CtvrSource(StrictModel):
    """Categories of a published data set, some to a task (ctvr-ffa-tame, section 4.1)."""

    kind: Literal["ctvr"]
    facts: str = Field(description="file beside the protocol: category → videos, captions, clip times")
    categories_per_task: int = Field(ge=1)
    captions: str | None = Field(
        default=None, description="file of the data set, in the videos' folder, that holds training captions"
    )
    needs: str = Field(description="what has to be fetched, in words")

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """The first ``count`` tasks.

        Raises:
            ProtocolError: a file is missing; says which and where it belongs.
        """
        groups = self._groups()[:count]
        wanted = [row[0] for group in groups for category in group for _, row in category.rows()]
        found = self._files(videos, wanted)
        told = self._training_captions(videos) if videos and self.captions else {}
        for number, group in enumerate(groups, 1):
            names = [category.name for category in group]
            listed = [
                _clip(row, split, found[row[0]], told, category.name)
                for category in group
                for split, row in category.rows()
            ]
            name = ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]}"
            yield SourceTask(f"task-{number:02d}", name, tuple(listed))

    def _groups(self) -> list[list[_Category]]:
        packed = (resources.files("benchmarks") / "protocols" / self.facts).read_bytes()
        lines = gzip.decompress(packed).decode().splitlines()
        categories = [
            _Category(fact["category"], fact["train"], fact["test"]) for fact in map(json.loads, lines)
        ]
        size = self.categories_per_task
        return [categories[start : start + size] for start in range(0, len(categories), size)]

    def _files(self, folder: Path | None, wanted: Sequence[str]) -> dict[str, Path]:
        if folder is None:
            raise ProtocolError(
                f"{len(wanted)} videos are needed, and no folder was given: name it with --videos. It must hold, "
                f"at any depth, {self.needs}"
            )
        by_name = _by_stem(folder)
        places = {video: by_name.get(video) or by_name.get(video.removeprefix("v_")) for video in wanted}
        found = {video: path for video, path in places.items() if path}
        lacking = [video for video in wanted if video not in found]
        if lacking:
            raise ProtocolError(
                f"{folder} lacks {len(lacking)} of {len(wanted)} videos: {_some(lacking)}. It must hold, at any "
                f"depth, {self.needs} Files are found by id with any of these endings: {', '.join(_KINDS)}."
            )
        return found

    def _training_captions(self, folder: Path) -> dict[str, tuple[str, ...]]:
        name = str(self.captions)
        path = next(iter(sorted(folder.rglob(name))), None)
        if path is None:
            raise ProtocolError(
                f"{folder} lacks {name} with the training captions. It must hold {self.needs}"
            )
        told: dict[str, list[str]] = {}
        try:
            for sentence in json.loads(path.read_text(encoding="utf-8"))["sentences"]:
                told.setdefault(sentence["video_id"], []).append(sentence["caption"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(
                f"{path} is not what is wanted: JSON with 'sentences', each with video_id and caption"
            ) from error
        return {video: tuple(captions) for video, captions in told.items()}


class DatasetSpec(StrictModel):
    """One data set as a task: ``<folder of the videos>/<folder>/manifest.jsonl`` (or ``.csv``)."""

    name: str
    folder: str
    videos: dict[Split, int] = Field(description="how many each split holds")
    paragraph: bool = Field(default=False, description="join the captions of a video into one")
    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training videos to validate with, where none are given",
    )


class DatasetsSource(StrictModel):
    """A sequence of data sets, each with the manifest that its task has in ``cinestrata ingest``."""

    kind: Literal["datasets"]
    datasets: tuple[DatasetSpec, ...] = Field(min_length=1)
    needs: str = Field(description="what has to be fetched, in words")

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """The first ``count`` data sets.

        Raises:
            ProtocolError: a manifest or a file is missing, or a split has another size.
        """
        wanted = self.datasets[:count]
        listed = "\n".join(
            f"  {dataset.folder}/{MANIFEST_NAMES[0]}: {dataset.name}, "
            + ", ".join(f"{number} {split}" for split, number in dataset.videos.items())
            for dataset in wanted
        )
        if videos is None:
            raise ProtocolError(
                f"the videos are not here: give their folder with --videos. It must hold\n{listed}\n{self.needs}"
            )
        absent = [dataset.folder for dataset in wanted if find_manifest(videos / dataset.folder) is None]
        if absent:
            raise ProtocolError(
                f"{videos} has no manifest for {', '.join(absent)}. It must hold\n{listed}\n{self.needs}"
            )
        for dataset in wanted:
            part = _of_manifest(videos / dataset.folder, dataset.folder, dataset.name)
            _check_sizes(part, dataset, videos)
            if dataset.paragraph:
                joined = (
                    replace(v, captions=(" ".join(v.captions),) * bool(v.captions)) for v in part.videos
                )
                part = replace(part, videos=tuple(joined))
            if dataset.validation and not any(video.split == "val" for video in part.videos):
                part = _held_out(part, dataset.validation, of="train", to="val")
            yield part


class FolderSource(StrictModel):
    """Any folder of folders with manifests: each is a task, in the order of their names."""

    kind: Literal["folder"]
    held_out: float = Field(
        ge=0, lt=1, description="share that is held out where a manifest gives no test split"
    )

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """The first ``count`` folders.

        Raises:
            ProtocolError: there is no manifest, or it names files that are not there.
        """
        if videos is None:
            raise ProtocolError(
                "give a folder with --videos; every folder in it with a manifest.jsonl or manifest.csv is a task"
            )
        folders = [folder for folder in sorted(videos.glob("*/")) if find_manifest(folder)]
        if not folders:
            raise ProtocolError(
                f"no folder in {videos} has a manifest.jsonl or manifest.csv; each that has one is a task"
            )
        for folder in folders[:count]:
            part = _of_manifest(folder, folder.name, folder.name)
            if not any(video.split == "test" for video in part.videos):
                part = _held_out(part, self.held_out, of="train", to="test")
            yield part


Source = Annotated[WorldSource | CtvrSource | DatasetsSource | FolderSource, Field(discriminator="kind")]


@dataclass(frozen=True)
class _Category:
    """Rows are ``[id]``, ``[id, caption]`` or ``[id, caption, start, end]``."""

    name: str
    train: list[list]
    test: list[list]

    def rows(self) -> Iterator[tuple[Split, list]]:
        yield from (("train", row) for row in self.train)
        yield from (("test", row) for row in self.test)


def _clip(
    row: list, split: Split, path: Path, told: Mapping[str, tuple[str, ...]], category: str
) -> SourceVideo:
    identifier, *more = row
    captions = tuple(more[:1]) or told.get(identifier, ())
    if not captions:
        raise ProtocolError(
            f"the file of training captions has none for {identifier}; fetch the complete one"
        )
    span = (more[1], more[2]) if len(more) == 3 else None
    return SourceVideo(identifier, captions, split, FileFrames(path, span), category)


def _of_manifest(folder: Path, identifier: str, name: str) -> SourceTask:
    """A folder as a task; captioned videos without a split are for training, others are only indexed."""
    manifest = find_manifest(folder)
    entries: list[ManifestEntry] = read_manifest(manifest) if manifest else []
    lacking = [entry.uri for entry in entries if not (folder / entry.uri).is_file()]
    if lacking:
        raise ProtocolError(
            f"{manifest} names {len(lacking)} of {len(entries)} files that are not there: {_some(lacking)}. "
            "Paths start at the manifest's own folder"
        )
    return SourceTask(
        identifier,
        name,
        tuple(
            SourceVideo(
                e.name, e.captions, e.split or ("train" if e.captions else None), FileFrames(folder / e.uri)
            )
            for e in entries
        ),
    )


def _check_sizes(part: SourceTask, dataset: DatasetSpec, videos: Path) -> None:
    counted = Counter(video.split for video in part.videos)
    wrong = [
        f"{counted[split]} {split} videos where the protocol has {number}"
        for split, number in dataset.videos.items()
        if counted[split] != number
    ]
    if wrong:
        raise ProtocolError(
            f"{videos / dataset.folder}: {', '.join(wrong)}. Results would not compare; to measure on other "
            "sizes all the same, copy the protocol's file, change its numbers and run the copy"
        )


def _held_out(part: SourceTask, share: float, *, of: Split, to: Split) -> SourceTask:
    """Move a share of a split to another: those whose ids have the lowest hashes, so the same ones every time.

    At least one is moved, and at least one stays.
    """
    ids = [video.id for video in part.videos if video.split == of and video.captions]
    wanted = min(max(1, int(share * len(ids))), len(ids) - 1) if share > 0 and len(ids) > 1 else 0
    moved = set(sorted(ids, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:wanted])
    return replace(part, videos=tuple(replace(v, split=to) if v.id in moved else v for v in part.videos))


def _by_stem(folder: Path) -> dict[str, Path]:
    """SourceVideo files at any depth, by their name up to the first dot."""
    if not folder.is_dir():
        raise ProtocolError(f"{folder} is not a folder; give the one that holds the videos with --videos")
    files = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _KINDS)
    return {path.name.split(".")[0]: path for path in files}


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (" …" if len(listed) > _NAMED else "")
