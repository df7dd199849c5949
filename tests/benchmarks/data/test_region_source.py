"""SeViGe: Visual Genome regions by their object's category."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks.data.frame_sources import ImageFrames
from benchmarks.data.region_source import RegionSource
from benchmarks.errors import ProtocolError
from benchmarks.learning.protocol import load_protocol
from tests.image_text_files import sevige_files, write_json

FIELDS: dict[str, Any] = {
    "kind": "visual_genome",
    "domains": [
        {"name": "animals", "categories": {"dog": ["dog", "dogs"], "cat": ["cat", "cats"]}},
        {"name": "vehicles", "categories": {"bus": ["bus"]}},
    ],
    "train": 1,
    "val": 1,
    "test": 1,
    "needs": "the files of Visual Genome",
}
SOURCE = RegionSource.model_validate(FIELDS)


def test_domains_have_the_sizes_of_the_paper() -> None:
    source = load_protocol("sevige").source
    assert isinstance(source, RegionSource)
    assert [(domain.name, len(domain.categories)) for domain in source.domains] == [
        ("animals", 9),
        ("vehicles", 6),
        ("clothes", 6),
    ]
    assert (source.val, source.test) == (100, 100)
    assert 6 * source.train == 10_200


def test_regions_of_a_category_are_divided(tmp_path: Path) -> None:
    animals, vehicles = SOURCE.tasks(sevige_files(tmp_path, 4), None)
    assert (animals.id, animals.name, vehicles.id) == ("task-01", "animals", "task-02")
    counts = Counter((video.category, video.split) for video in (*animals.videos, *vehicles.videos))
    assert counts == {(c, s): 1 for c in ("dog", "cat", "bus") for s in ("test", "val", "train")}
    for video in (*animals.videos, *vehicles.videos):
        assert isinstance(video.frame_source, ImageFrames)
        image = video.frame_source.path.stem
        assert video.id in (f"{image}0", f"{image}1"), "regions of two categories, or of none, are left out"
        assert video.frame_source.box == (4, 2, 12, 10)
        (phrase,) = video.captions
        assert phrase.endswith(f"image {image}")


def test_image_has_one_region_at_most(tmp_path: Path) -> None:
    source = RegionSource.model_validate({**FIELDS, "train": 100})
    paths = [
        video.frame_source.path
        for task in source.tasks(sevige_files(tmp_path, 6), None)
        for video in task.videos
        if isinstance(video.frame_source, ImageFrames)
    ]
    assert len(paths) == len(set(paths)) == 18


def test_choice_does_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    one, two = sevige_files(tmp_path / "one"), sevige_files(tmp_path / "two")
    images = json.loads((two / "region_graphs.json").read_text())
    for image in images:
        image["regions"].reverse()
    write_json(two / "region_graphs.json", images[::-1])

    def chosen(folder: Path) -> list[tuple[str, str | None]]:
        return [(video.id, video.split) for task in SOURCE.tasks(folder, None) for video in task.videos]

    assert chosen(one) == chosen(two)


def test_invalid_file_raises_with_file_and_field(tmp_path: Path) -> None:
    path = sevige_files(tmp_path) / "region_graphs.json"
    images = json.loads(path.read_text())
    images[0]["regions"][0]["objects"][0].pop("name")
    write_json(path, images)
    with pytest.raises(ProtocolError, match=r"region_graphs\.json: 0\.regions\.0\.objects\.0\.name: "):
        list(SOURCE.tasks(tmp_path, None))


def test_missing_files_raise_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r"--videos.*the files of Visual Genome"):
        list(SOURCE.tasks(None, None))
    with pytest.raises(ProtocolError, match=r"lacks region_graphs\.json"):
        list(SOURCE.tasks(tmp_path, None))
    folder = sevige_files(tmp_path)
    for path in folder.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(ProtocolError, match=r"lacks 3 of 3 images: 1\d\d\.jpg, .*the files of Visual Genome"):
        list(SOURCE.tasks(folder, None))


def test_too_few_regions_raise_with_the_category(tmp_path: Path) -> None:
    with pytest.raises(
        ProtocolError, match=r"category 'dog' has 2 regions in region_graphs\.json; .* 1 held-out"
    ):
        list(SOURCE.tasks(sevige_files(tmp_path, 2), None))


def test_object_name_of_two_categories_is_refused() -> None:
    repeated = {"name": "toys", "categories": {"toy": ["doll", "dog"]}}
    with pytest.raises(ValidationError, match="'dog' belongs to two categories"):
        RegionSource.model_validate({**FIELDS, "domains": [*FIELDS["domains"], repeated]})
