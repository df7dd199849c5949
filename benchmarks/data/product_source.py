"""P9D: product images and titles, one task per industry (ctp, section 3).

``train.json`` maps each industry to its products by ID. ``test.json`` (cross-modal retrieval), ``query.json`` and
``gallery.json`` (multi-modal retrieval) map IDs to products with their industry. Images are named by ID.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from benchmarks.data.annotation_files import DataFolder, read_annotations
from benchmarks.data.frame_sources import ImageFrames
from benchmarks.data.source_tasks import SourceTask, SourceVideo, Split, StrictModel, abbreviate
from benchmarks.errors import ProtocolError

_TRAIN, _TEST, _QUERY, _GALLERY = "train.json", "test.json", "query.json", "gallery.json"


class Industry(StrictModel):
    """A task: the products of an industry."""

    name: str
    key: str = Field(description="Name of the industry in the files.")


class ProductSource(StrictModel):
    """P9D products by industry."""

    kind: Literal["p9d"]
    industries: tuple[Industry, ...] = Field(min_length=1)
    needs: str = Field(description="Description of the files to download.")

    def tasks(self, videos: Path | None, count: int | None) -> Iterator[SourceTask]:
        """Yield the first ``count`` industries, with the labeled pairs for multi-modal retrieval.

        Raises:
            ProtocolError: A file is missing or invalid, or an industry has no products in it.
        """
        folder = DataFolder(videos, self.needs)
        paths = {name: folder.annotations(name)[0] for name in (_TRAIN, _TEST, _QUERY, _GALLERY)}
        trained: Products = read_annotations(paths[_TRAIN], _TRAIN_FILE)
        products = {name: trained if name == _TRAIN else _by_industry(path) for name, path in paths.items()}
        for number, industry in enumerate(self.industries[:count], 1):
            for name, by_industry in products.items():
                if not by_industry.get(industry.key):
                    raise ProtocolError(
                        f"{paths[name]}: no product belongs to the industry {industry.key!r} ({industry.name}); the "
                        f"file has {abbreviate(sorted(by_industry)) or 'none'}"
                    )
            part = {name: by_industry[industry.key] for name, by_industry in products.items()}
            yield SourceTask(
                f"task-{number:02d}",
                industry.name,
                (
                    *_pairs(part[_TRAIN], "train", folder),
                    *_pairs(part[_TEST], "test", folder),
                ),
                pair_queries=_pairs(part[_QUERY], None, folder),
                pair_gallery=_pairs(part[_GALLERY], None, folder),
            )


class _Product(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    title: Annotated[str, StringConstraints(strip_whitespace=True)]
    cate_name: str = Field(min_length=1)


class _ListedProduct(_Product):
    industry_name: str


Products = dict[str, dict[str, _Product]]  # by industry and ID
_TRAIN_FILE = TypeAdapter(Products)
_LISTED_FILE = TypeAdapter(dict[str, _ListedProduct])


def _by_industry(path: Path) -> Products:
    """Read a file's products by industry and ID."""
    products: Products = {}
    for identifier, product in read_annotations(path, _LISTED_FILE).items():
        products.setdefault(product.industry_name, {})[identifier] = product
    return products


def _pairs(
    products: Mapping[str, _Product], split: Split | None, folder: DataFolder
) -> tuple[SourceVideo, ...]:
    """Convert products to images with one caption; a product with an empty title has none."""
    paths = folder.images(f"{identifier}.jpg" for identifier in products)
    return tuple(
        SourceVideo(
            identifier,
            (product.title,) if product.title else (),
            split,
            ImageFrames(paths[f"{identifier}.jpg"]),
            product.cate_name,
        )
        for identifier, product in products.items()
    )
