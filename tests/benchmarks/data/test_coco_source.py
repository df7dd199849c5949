"""SeCOCO: images of MS-COCO grouped by super-categories."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data.coco_source import CocoSource
from benchmarks.data.frame_sources import ImageFrames
from benchmarks.errors import ProtocolError
from benchmarks.learning.protocol import load_protocol
from tests.image_text_files import secoco_files, write_json

SOURCE = CocoSource.model_validate(
    {
        "kind": "coco",
        "groups": [
            {"name": "animals", "supercategories": ["animal"]},
            {"name": "others", "supercategories": ["vehicle", "person"]},
        ],
        "val": 1,
        "test": 1,
        "needs": "the files of MS-COCO",
    }
)
Change = Callable[[dict[str, Any]], object]


def test_groups_are_those_of_the_paper() -> None:
    source = load_protocol("secoco").source
    assert isinstance(source, CocoSource)
    names = [name for group in source.groups for name in group.supercategories]
    assert len(names) == len(set(names)) == 12, "MS-COCO has twelve super-categories"
    assert [len(group.supercategories) for group in source.groups] == [5, 5, 2]
    assert (source.val, source.test) == (1000, 1000)


def test_images_of_one_group_are_its_task(tmp_path: Path) -> None:
    animals, others = SOURCE.tasks(secoco_files(tmp_path, 4), None)
    assert (animals.id, animals.name) == ("task-01", "animals")
    assert sorted(video.id for video in animals.videos) == ["1000", "1003", "2000", "2003"]
    assert len(others.videos) == 8, "vehicles and persons form one group"
    everything = {video.id for task in (animals, others) for video in task.videos}
    assert not everything & {"1006", "2006"}, "images of both groups are left out"
    for task in (animals, others):
        counts = Counter(video.split for video in task.videos)
        assert counts == {"test": 1, "val": 1, "train": len(task.videos) - 2}
        for video in task.videos:
            assert video.captions == (f"Caption 0 of {video.id}.", f"Caption 1 of {video.id}.")
            assert isinstance(video.frame_source, ImageFrames)
            assert video.frame_source.path.name == f"{int(video.id):012d}.jpg"
            assert video.frame_source.path.is_file()


def test_split_does_not_depend_on_the_order_of_the_files(tmp_path: Path) -> None:
    def splits(folder: Path) -> dict[str, str | None]:
        return {video.id: video.split for task in SOURCE.tasks(folder, None) for video in task.videos}

    one, two = secoco_files(tmp_path / "one"), secoco_files(tmp_path / "two")
    for path in (two / "annotations").iterdir():
        content = json.loads(path.read_text())
        write_json(
            path, {name: part[::-1] if isinstance(part, list) else part for name, part in content.items()}
        )
    assert splits(one) == splits(two)


def test_first_task_needs_only_its_images(tmp_path: Path) -> None:
    folder = secoco_files(tmp_path)
    (folder / "train2017" / "000000001001.jpg").unlink()
    (task,) = SOURCE.tasks(folder, 1)
    assert task.name == "animals"
    with pytest.raises(
        ProtocolError, match=r"lacks 1 of 8 images: 000000001001\.jpg\. .*the files of MS-COCO"
    ):
        list(SOURCE.tasks(folder, None))


def test_image_without_objects_or_captions_is_left_out(tmp_path: Path) -> None:
    folder = secoco_files(tmp_path)
    path = folder / "annotations" / "captions_train2017.json"
    content = json.loads(path.read_text())
    content["images"].append({"id": 1, "file_name": "1.jpg"})
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] != 1000]
    content["annotations"].append({"image_id": 1000, "caption": "  "})
    write_json(path, content)
    listed = {video.id for task in SOURCE.tasks(folder, None) for video in task.videos}
    assert not listed & {"1", "1000"}
    assert len(listed) == 11


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "captions_train2017",
            lambda c: c["images"][2].pop("file_name"),
            r"images\.2\.file_name: Field required",
        ),
        (
            "captions_train2017",
            lambda c: c["annotations"][1].update(image_id=5),
            r"annotations\.1\.image_id: 5 is not the ID of an image",
        ),
        (
            "captions_train2017",
            lambda c: c["images"][0].update(file_name="../../x.jpg"),
            r"lacks 1 of 4 images: \.\./",
        ),
        (
            "captions_val2017",
            lambda c: c["images"].append({"id": 1000, "file_name": "1.jpg"}),
            "image 1000 occurs in another file",
        ),
        (
            "instances_val2017",
            lambda c: c["annotations"][3].update(category_id=99),
            r"annotations\.3\.category_id: 99 is not the ID of a category",
        ),
        (
            "instances_val2017",
            lambda c: c["categories"][0].update(supercategory="human"),
            "categories: no category has the super-category person; the file has animal, human, vehicle",
        ),
    ],
)
def test_invalid_file_raises_with_file_and_field(
    tmp_path: Path, name: str, change: Change, message: str
) -> None:
    path = secoco_files(tmp_path) / "annotations" / f"{name}.json"
    content = json.loads(path.read_text())
    change(content)
    write_json(path, content)
    match = message if "lacks" in message else rf"{name}\.json: {message}"
    with pytest.raises(ProtocolError, match=match):
        list(SOURCE.tasks(tmp_path, None))


def test_missing_files_raise_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r"--videos.*the files of MS-COCO"):
        list(SOURCE.tasks(None, None))
    with pytest.raises(ProtocolError, match=r"lacks captions_\*\.json"):
        list(SOURCE.tasks(tmp_path, None))
    folder = secoco_files(tmp_path)
    (folder / "annotations" / "instances_val2017.json").unlink()
    with pytest.raises(ProtocolError, match=r"lacks instances_val2017\.json"):
        list(SOURCE.tasks(folder, None))


def test_too_few_images_raise_with_the_group(tmp_path: Path) -> None:
    with pytest.raises(
        ProtocolError, match="group 'animals' has 2 images; the protocol needs 1 held-out images, 1"
    ):
        list(SOURCE.tasks(secoco_files(tmp_path, 2), None))
