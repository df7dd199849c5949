"""P9D: products by industry, with the labeled pairs of multi-modal retrieval."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data.frame_sources import ImageFrames
from benchmarks.data.product_source import ProductSource
from benchmarks.errors import ProtocolError
from benchmarks.learning.protocol import load_protocol
from tests.image_text_files import INDUSTRIES, p9d_files, write_json

SOURCE = ProductSource.model_validate(
    {
        "kind": "p9d",
        "industries": [
            {"name": name, "key": key} for name, key in zip(("Home", "Food"), INDUSTRIES, strict=True)
        ],
        "needs": "the files of P9D",
    }
)


def test_protocol_has_nine_industries() -> None:
    source = load_protocol("p9d").source
    assert isinstance(source, ProductSource)
    assert len({industry.key for industry in source.industries}) == 9


def test_products_of_an_industry_are_a_task(tmp_path: Path) -> None:
    home, food = SOURCE.tasks(p9d_files(tmp_path, 4), None)
    assert (home.id, home.name, food.name) == ("task-01", "Home", "Food")
    assert Counter(video.split for video in home.videos) == {"train": 8, "test": 4}
    assert (len(home.pair_queries), len(home.pair_gallery)) == (4, 8)
    for video in (*food.videos, *food.pair_queries, *food.pair_gallery):
        assert video.category in ("tea", "rice")
        assert video.captions[0].startswith(f"{video.category} 产品")
        assert isinstance(video.frame_source, ImageFrames)
        assert video.frame_source.path.name == f"{video.id}.jpg"
        folder = "train_images" if video.split == "train" else "gallery_images"
        assert video.frame_source.path.parent.name == folder


def test_first_task_needs_only_its_images(tmp_path: Path) -> None:
    folder = p9d_files(tmp_path)
    home, food = SOURCE.tasks(folder, None)
    lost = food.pair_gallery[0].frame_source
    assert isinstance(lost, ImageFrames)
    lost.path.unlink()
    assert list(SOURCE.tasks(folder, 1)) == [home]
    with pytest.raises(ProtocolError, match=rf"lacks 1 of 8 images: {lost.path.name}\. .*the files of P9D"):
        list(SOURCE.tasks(folder, None))


def test_other_industries_are_ignored_and_empty_titles_are_no_captions(tmp_path: Path) -> None:
    folder = p9d_files(tmp_path)
    path = folder / "json" / "test.json"
    products = json.loads(path.read_text())
    first, second, *_ = products
    products[first]["title"] = " "
    products[second]["industry_name"] = "其他"
    write_json(path, products)
    home, _ = SOURCE.tasks(folder, None)
    held_out = [video for video in home.videos if video.split == "test"]
    assert [video.captions for video in held_out if video.id == first] == [()]
    assert second not in {video.id for video in held_out}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "train",
            lambda products: products.pop("食品/保健"),
            r"no product belongs to the industry '食品/保健' \(Food\)",
        ),
        (
            "test",
            lambda products: next(iter(products.values())).pop("industry_name"),
            r"\d+\.industry_name: Field",
        ),
        ("query", lambda products: products.clear(), "no product belongs to .*; the file has none"),
    ],
)
def test_invalid_file_raises_with_file_and_field(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = p9d_files(tmp_path) / "json" / f"{name}.json"
    products = json.loads(path.read_text())
    change(products)
    write_json(path, products)
    with pytest.raises(ProtocolError, match=rf"{name}\.json: {message}"):
        list(SOURCE.tasks(tmp_path, None))


def test_identifier_with_a_path_is_not_followed(tmp_path: Path) -> None:
    path = p9d_files(tmp_path) / "json" / "query.json"
    products = json.loads(path.read_text())
    write_json(path, {**products, "../train_images/1": next(iter(products.values()))})
    with pytest.raises(ProtocolError, match=r"lacks 1 of 5 images: \.\./train_images/1\.jpg"):
        list(SOURCE.tasks(tmp_path, None))


def test_missing_files_raise_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r"--videos.*the files of P9D"):
        list(SOURCE.tasks(None, None))
    folder = p9d_files(tmp_path)
    (folder / "json" / "gallery.json").unlink()
    with pytest.raises(ProtocolError, match=r"lacks gallery\.json"):
        list(SOURCE.tasks(folder, None))
