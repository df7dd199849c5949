"""Encoder families: discovery, unknown kinds, and that no other module repeats a kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

import benchmarks.rivals  # noqa: F401 (registers the families of rivals)
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import (
    encoder_families,
    encoder_family,
    open_query_encoder,
    read_query_release,
    read_video_release,
    select_query_tensors,
    select_video_tensors,
)
from models.errors import ReleaseError
from models.releases.release_files import write_release
from tests.models.encoders.small_releases import small_release

ROOT = Path(__file__).parents[3]
PACKAGES = ("models", "media", "index", "service", "trainer", "api", "cli", "benchmarks")


def test_families_have_the_kinds_of_stored_releases() -> None:
    """The kinds are part of the file format: libraries on disk name them."""
    assert set(encoder_families()) == {
        "analytic",
        "frozen",
        "tower",
        "mapped",
        "proxies",
        "tame",
        "low_rank",
        "moe",
        "progressive",
    }
    for kind, family in encoder_families().items():
        assert encoder_family(kind) is family
        assert family.kind == kind
        assert "latest" in family.query_encoder.modes


def test_unknown_kind_is_an_error_that_names_the_known_ones(backbone: Backbone, tmp_path: Path) -> None:
    release = small_release(backbone, "hologram", {})
    for use in (
        lambda: encoder_family("hologram"),
        lambda: open_query_encoder(backbone, release, {}),
        lambda: select_query_tensors(release),
        lambda: select_video_tensors(release),
    ):
        with pytest.raises(
            ReleaseError, match=r"kind 'hologram' is unknown .* frozen, low_rank, mapped, moe"
        ):
            use()
    write_release(tmp_path, release)
    for read in (read_query_release, read_video_release):
        with pytest.raises(
            ReleaseError, match=f"release {tmp_path.name}: release kind 'hologram' is unknown"
        ):
            read(tmp_path)


def _is_kind(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", getattr(node, "value", None))) == "kind"


def _constants(*nodes: ast.AST | None) -> Iterator[ast.Constant]:
    for node in nodes:
        if node is not None:
            yield from (n for n in ast.walk(node) if isinstance(n, ast.Constant))


def _assigns_kind(node: ast.AST) -> TypeGuard[ast.keyword | ast.Assign | ast.AnnAssign]:
    if isinstance(node, ast.Assign):
        return any(map(_is_kind, node.targets))
    if isinstance(node, ast.AnnAssign):
        return _is_kind(node.target)
    return isinstance(node, ast.keyword) and node.arg == "kind"


def _kind_literals(source: str) -> set[int]:
    """Lines where a literal is compared with, assigned to or passed as ``kind``, or where kinds are listed."""
    found: list[ast.Constant] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(map(_is_kind, (node.left, *node.comparators))):
            found += _constants(node.left, *node.comparators)
        elif _assigns_kind(node):
            found += _constants(node.value)
        elif isinstance(node, ast.Match) and _is_kind(node.subject):
            found += _constants(*(case.pattern for case in node.cases))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "encoder_family":
            found += _constants(*node.args)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                found += _constants(value) if key is not None and _is_kind(key) else ()
        if isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set):
            items = [n for n in (node.keys if isinstance(node, ast.Dict) else node.elts) if n is not None]
            listed = [n for n in items if isinstance(n, ast.Constant) and n.value in encoder_families()]
            found += listed if len(listed) > 1 else ()
    return {constant.lineno for constant in found if constant.value in encoder_families()}


@pytest.mark.parametrize(
    "source",
    [
        'release.kind == "frozen"',
        'release.kind not in ("tame", x)',
        'State(kind="low_rank")',
        'class Method:\n    kind = "moe"',
        'class Method:\n    kind: str = "moe"',
        'encoder_family("tower")',
        'match release.kind:\n    case "frozen": pass',
        '{"kind": "mapped"}',
        'PREFIXES = {"frozen": (), "tower": ("clip.",)}',
        'Kind = Literal["frozen", "tower"]',
    ],
)
def test_scan_finds_kind_literals(source: str) -> None:
    assert _kind_literals(source)


@pytest.mark.parametrize("source", ['modes = ("latest", "mapped")', 'event.kind == "log"', "f(kind=x.kind)"])
def test_scan_ignores_other_literals(source: str) -> None:
    assert not _kind_literals(source)


def test_only_family_modules_contain_kind_literals() -> None:
    families = {ROOT / "models" / "encoders" / "families", ROOT / "benchmarks" / "rivals" / "encoders"}
    quoted_kinds = [f'"{kind}"' for kind in encoder_families()]
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text()
            if families.isdisjoint(path.parents) and any(kind in source for kind in quoted_kinds):
                found[str(path.relative_to(ROOT))] = _kind_literals(source)
    assert "trainer/methods/ffa_tame.py" in found, "its setting 'tame' is not a kind"
    assert not any(found.values()), found
