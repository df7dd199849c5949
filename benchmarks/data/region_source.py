"""Regions of Visual Genome with their phrases, as tasks of object categories.

The tasks are those of continual-cross-modal-retrieval, section 6.1. ``region_graphs.json`` links each region to its
objects. Images are named by ID.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator

from benchmarks.data.annotation_files import DataFolder, stream_annotations
from benchmarks.data.frame_sources import Box, ImageFrames
from benchmarks.data.source_tasks import SourceTask, SourceVideo, StrictModel, hash_order, held_out_split
from benchmarks.errors import ProtocolError

_FILE = "region_graphs.json"


class RegionDomain(StrictModel):
    """A task: regions with an object in these categories."""

    name: str
    categories: dict[str, tuple[str, ...]] = Field(
        min_length=1, description="Names of the objects of each category, in lower case."
    )


class RegionSource(StrictModel):
    """Regions of Visual Genome by the category of their object; counts are per category."""

    kind: Literal["visual_genome"]
    domains: tuple[RegionDomain, ...] = Field(min_length=1)
    train: int = Field(ge=1, description="Largest number of training regions.")
    val: int = Field(ge=0)
    test: int = Field(ge=1)
    needs: str = Field(description="Description of the files to download.")

    @model_validator(mode="after")
    def _objects_have_one_category(self) -> RegionSource:
        names = [name for domain in self.domains for words in domain.categories.values() for name in words]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"the object name {repeated[0]!r} belongs to two categories; list it once")
        return self

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """Yield the first ``count`` domains, with at most one region per image.

        A region belongs to a category if that is the only listed category among its objects. If an image has several
        such regions, the first by the SHA-256 of its ID is used, so that no image has regions in two splits or tasks. A
        category's regions are split in the SHA-256 order of their images' IDs: the first are held out, the next are for
        validation, and the next for training.

        Raises:
            ProtocolError: A file is missing or invalid, or a category has too few regions.
        """
        folder = DataFolder(videos, self.needs)
        regions = self._regions_by_category(folder.annotations(_FILE)[0])
        for number, domain in enumerate(self.domains[:count], 1):
            listed: list[SourceVideo] = []
            for category in domain.categories:
                listed += self._category_videos(category, regions[domain.name, category], folder)
            yield SourceTask(f"task-{number:02d}", domain.name, tuple(listed))

    def _regions_by_category(self, path: Path) -> dict[tuple[str, str], dict[str, _Region]]:
        """Read the regions by domain and category, then by image."""
        category_of = {
            name: (domain.name, category)
            for domain in self.domains
            for category, words in domain.categories.items()
            for name in words
        }
        found: dict[tuple[str, str], dict[str, _Region]] = {
            (domain.name, category): {} for domain in self.domains for category in domain.categories
        }
        for image in stream_annotations(path, _IMAGE):
            candidates = {
                str(region.region_id): (categories.pop(), region)
                for region in image.regions
                if region.phrase and len(categories := _categories(region, category_of)) == 1
            }
            if candidates:
                chosen = hash_order(list(candidates))[0]
                category, region = candidates[chosen]
                box = (region.x, region.y, region.width, region.height)
                found[category][f"{image.image_id}.jpg"] = _Region(chosen, region.phrase, box)
        return found

    def _category_videos(
        self, category: str, regions: Mapping[str, _Region], folder: DataFolder
    ) -> list[SourceVideo]:
        if len(regions) <= self.test + self.val:
            raise ProtocolError(
                f"category {category!r} has {len(regions)} regions in {_FILE}; the protocol needs {self.test} held-out "
                f"regions, {self.val} for validation and at least one for training. Use the complete file, or copy the "
                "protocol file and lower its numbers"
            )
        chosen = hash_order(list(regions))[: self.test + self.val + self.train]
        paths = folder.images(chosen)
        return [
            SourceVideo(
                regions[image].id,
                (regions[image].phrase,),
                held_out_split(position, self.test, self.val),
                ImageFrames(paths[image], regions[image].box),
                category,
            )
            for position, image in enumerate(chosen)
        ]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _ObjectFields(_Fields):
    name: str


class _RegionFields(_Fields):
    region_id: int
    x: int
    y: int
    width: int
    height: int
    phrase: Annotated[str, StringConstraints(strip_whitespace=True)]
    objects: list[_ObjectFields]


class _ImageRegions(_Fields):
    image_id: int
    regions: list[_RegionFields]


class _Region(NamedTuple):
    id: str
    phrase: str
    box: Box


_IMAGE = TypeAdapter(_ImageRegions)


def _categories(region: _RegionFields, category_of: Mapping[str, tuple[str, str]]) -> set[tuple[str, str]]:
    """Find the listed categories among a region's objects, by domain and name."""
    names = (thing.name.strip().lower() for thing in region.objects)
    return {category_of[name] for name in names if name in category_of}
