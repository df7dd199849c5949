"""MS-COCO as tasks of super-categories: images with captions (continual-cross-modal-retrieval, section 6.2).

Files are those of an MS-COCO release: ``captions_*.json`` and ``instances_*.json`` for the same split, such as
``captions_val2017.json`` and ``instances_val2017.json``, and the images under the names that they state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from benchmarks.data.annotation_files import DataFolder, read_annotations
from benchmarks.data.frame_sources import ImageFrames
from benchmarks.data.source_tasks import (
    SourceTask,
    SourceVideo,
    StrictModel,
    abbreviate,
    hash_order,
    held_out_split,
)
from benchmarks.errors import ProtocolError

_CAPTIONS, _INSTANCES = "captions_", "instances_"


class SuperCategoryGroup(StrictModel):
    """A task: images whose objects belong to these super-categories."""

    name: str
    supercategories: tuple[str, ...] = Field(min_length=1)


class CocoSource(StrictModel):
    """MS-COCO images, grouped by the super-categories of their objects."""

    kind: Literal["coco"]
    groups: tuple[SuperCategoryGroup, ...] = Field(min_length=1)
    val: int = Field(ge=0, description="Validation images of each task.")
    test: int = Field(ge=1, description="Held-out images of each task.")
    needs: str = Field(description="Description of the files to download.")

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """Yield the first ``count`` groups. Images with objects from several groups belong to none.

        A group's images are split in the SHA-256 order of their IDs: the first are held out, the next are for
        validation, and all others for training.

        Raises:
            ProtocolError: A file is missing or invalid, or a group has too few images.
        """
        folder = DataFolder(videos, self.needs)
        images: dict[int, _Image] = {}
        members: list[list[str]] = [[] for _ in self.groups]
        for release in folder.annotations(f"{_CAPTIONS}*.json"):
            objects = folder.annotations(release.name.replace(_CAPTIONS, _INSTANCES, 1))[0]
            captioned = _read_captions(release)
            repeated = captioned.keys() & images.keys()
            if repeated:
                raise ProtocolError(
                    f"{release}: image {min(repeated)} occurs in another file too; keep one release of MS-COCO in the "
                    "folder"
                )
            images |= captioned
            for image, groups in self._groups_of_images(objects).items():
                if len(groups) == 1 and image in captioned and captioned[image].captions:
                    members[groups.pop()].append(str(image))
        for number, group in enumerate(self.groups[:count], 1):
            yield self._task(f"task-{number:02d}", group, hash_order(members[number - 1]), images, folder)

    def _groups_of_images(self, path: Path) -> dict[int, set[int]]:
        """Find the groups of the objects in each image."""
        content = read_annotations(path, _INSTANCE_FILE)
        supercategories = {category.id: category.supercategory for category in content.categories}
        group_of = {name: index for index, group in enumerate(self.groups) for name in group.supercategories}
        unknown = sorted(group_of.keys() - set(supercategories.values()))
        if unknown:
            raise ProtocolError(
                f"{path}: categories: no category has the super-category {abbreviate(unknown)}; the file has "
                f"{abbreviate(sorted(set(supercategories.values()))) or 'none'}"
            )
        groups: dict[int, set[int]] = {}
        for index, instance in enumerate(content.annotations):
            if instance.category_id not in supercategories:
                raise ProtocolError(
                    f"{path}: annotations.{index}.category_id: {instance.category_id} is not the ID of a category"
                )
            group = group_of.get(supercategories[instance.category_id])
            if group is not None:
                groups.setdefault(instance.image_id, set()).add(group)
        return groups

    def _task(
        self,
        identifier: str,
        group: SuperCategoryGroup,
        ids: list[str],
        images: dict[int, _Image],
        folder: DataFolder,
    ) -> SourceTask:
        if len(ids) <= self.test + self.val:
            raise ProtocolError(
                f"group {group.name!r} has {len(ids)} images; the protocol needs {self.test} held-out images, "
                f"{self.val} for validation and at least one for training. Use the complete files, or copy the "
                "protocol file and lower its numbers"
            )
        members = {image: images[int(image)] for image in ids}
        paths = folder.images(member.file_name for member in members.values())
        listed = [
            SourceVideo(
                image,
                member.captions,
                held_out_split(position, self.test, self.val),
                ImageFrames(paths[member.file_name]),
            )
            for position, (image, member) in enumerate(members.items())
        ]
        return SourceTask(identifier, group.name, tuple(listed))


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _ImageFields(_Fields):
    id: int
    file_name: str


class _CaptionFields(_Fields):
    image_id: int
    caption: Annotated[str, StringConstraints(strip_whitespace=True)]


class _CaptionContent(_Fields):
    images: list[_ImageFields]
    annotations: list[_CaptionFields]


class _CategoryFields(_Fields):
    id: int
    supercategory: str


class _InstanceFields(_Fields):
    image_id: int
    category_id: int


class _InstanceContent(_Fields):
    categories: list[_CategoryFields]
    annotations: list[_InstanceFields]


class _Image(NamedTuple):
    file_name: str
    captions: tuple[str, ...]


_CAPTION_FILE = TypeAdapter(_CaptionContent)
_INSTANCE_FILE = TypeAdapter(_InstanceContent)


def _read_captions(path: Path) -> dict[int, _Image]:
    """Read a file's images with their captions, by ID; empty captions are ignored."""
    content = read_annotations(path, _CAPTION_FILE)
    captions: dict[int, list[str]] = {image.id: [] for image in content.images}
    for index, annotation in enumerate(content.annotations):
        if annotation.image_id not in captions:
            raise ProtocolError(
                f"{path}: annotations.{index}.image_id: {annotation.image_id} is not the ID of an image"
            )
        if annotation.caption:
            captions[annotation.image_id].append(annotation.caption)
    return {image.id: _Image(image.file_name, tuple(captions[image.id])) for image in content.images}
