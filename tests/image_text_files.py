"""Small data sets in the published forms of MS-COCO, Visual Genome and P9D, with real JPEG images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

INDUSTRIES = {"家居用品": ("cup", "lamp"), "食品/保健": ("tea", "rice")}
_ANIMAL, _CAR, _PERSON = 16, 3, 1
_CATEGORIES = [
    {"supercategory": "person", "id": _PERSON, "name": "person"},
    {"supercategory": "vehicle", "id": _CAR, "name": "car"},
    {"supercategory": "animal", "id": _ANIMAL, "name": "bird"},
]


def write_json(path: Path, content: Any) -> Path:
    """Write a JSON file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def write_jpeg(path: Path, color: Sequence[int] = (200, 40, 40), size: tuple[int, int] = (32, 24)) -> Path:
    """Write an image of one color."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, tuple(color)).save(path, quality=95)  # type: ignore[arg-type]
    return path


def secoco_files(folder: Path, count: int = 4) -> Path:
    """Return a release of MS-COCO: ``count`` images each with birds, cars and persons only, and two images
    with more.
    """
    for start, split in enumerate(("train2017", "val2017")):
        images, captions, instances = [], [], []
        for index in range(3 * count // 2 + 1):
            image = 1000 * (start + 1) + index
            objects = [(_ANIMAL, _CAR, _PERSON)[index % 3]] * 2 if index < 3 * count // 2 else [_ANIMAL, _CAR]
            name = f"{image:012d}.jpg"
            write_jpeg(folder / split / name, (60 * (index % 3), 7 * index, 100 * start))
            images.append({"license": 3, "file_name": name, "height": 24, "width": 32, "id": image})
            captions += [
                {"image_id": image, "id": 10 * image + n, "caption": f"Caption {n} of {image}.\n"}
                for n in range(2)
            ]
            instances += [
                {
                    "segmentation": [[1.5, 2, 9, 2, 9, 8]],
                    "area": 21.0,
                    "iscrowd": 0,
                    "image_id": image,
                    "bbox": [1.5, 2.0, 7.5, 6.0],
                    "category_id": category,
                    "id": 10 * image + n,
                }
                for n, category in enumerate(objects)
            ]
        about: dict[str, Any] = {"info": {"year": 2017}, "licenses": [], "images": images}
        notes = folder / "annotations"
        write_json(notes / f"captions_{split}.json", {**about, "annotations": captions})
        write_json(
            notes / f"instances_{split}.json", {**about, "annotations": instances, "categories": _CATEGORIES}
        )
    return folder


def _region(number: int, image: int, names: Sequence[str], **fields: Any) -> dict[str, Any]:
    """Return a region of ``region_graphs.json`` with objects of these names."""
    return {
        "region_id": number,
        "image_id": image,
        "x": 4,
        "y": 2,
        "width": 12,
        "height": 10,
        "phrase": f"a {names[0] if names else 'thing'} in image {image} ",
        "synsets": [],
        "relationships": [],
        "objects": [
            {"name": name, "object_id": number, "synsets": [f"{name}.n.01"], "x": 4, "y": 2, "w": 9, "h": 9}
            for name in names
        ],
        **fields,
    }


def sevige_files(folder: Path, count: int = 4) -> Path:
    """Return a release of Visual Genome: ``count`` images each with a dog, a cat and a bus, two regions of
    each image.
    """
    images = []
    for index, name in enumerate(["dog", "Cats", "bus"] * count):
        number = 100 + index
        half = "VG_100K" if index % 2 else "VG_100K_2"
        write_jpeg(folder / half / f"{number}.jpg", (80 * (index % 3), 5 * index, 90))
        regions = [
            _region(10 * number, number, [name, "grass"]),
            _region(10 * number + 1, number, [name], phrase=f"a second view of image {number}"),
            _region(10 * number + 2, number, ["dog", "bus"]),
            _region(10 * number + 3, number, ["sky"]),
            _region(10 * number + 4, number, [name], phrase="  "),
        ]
        images.append({"image_id": number, "regions": regions})
    write_json(folder / "region_graphs.json", images)
    return folder


def p9d_files(folder: Path, count: int = 4) -> Path:
    """Return a P9D with two industries of two categories: ``count`` training products per category, and half as many
    others.
    """
    sets: dict[str, Any] = {"train": {}, "test": {}, "query": {}, "gallery": {}}
    number = 600_000_000_000
    for industry, categories in INDUSTRIES.items():
        for part, products in sets.items():
            for category in categories:
                for index in range(count if part in ("train", "gallery") else count // 2):
                    number += 1
                    images = "train_images" if part == "train" else "gallery_images"
                    write_jpeg(
                        folder / images / f"{number}.jpg", (number % 250, 37 * index % 250, len(category))
                    )
                    product = {
                        "title": f"{category} 产品 {index}",
                        "cate_name": category,
                        "industry_name": industry,
                        "image_link": "https://example.org/a.jpg",
                    }
                    place = products.setdefault(industry, {}) if part == "train" else products
                    place[str(number)] = product
    for part, products in sets.items():
        write_json(folder / "json" / f"{part}.json", products)
    return folder
