"""Look up encoder families, and read and open releases through them.

A family's module is imported when a release of its kind is read: most processes need one family, and only some families
need torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from models.backbones.query_backbone import QueryBackbone
from models.encoders.encoder_family import EncoderFamily
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.errors import ReleaseError
from models.releases.release_files import read_release
from models.releases.release_lineage import TaskLineage
from models.releases.release_state import ReleaseState

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone

# Each kind's family is in the module <kind>_family of models.encoders.families.
_KINDS = ("analytic", "frozen", "low_rank", "tame", "tower")
_families: dict[str, EncoderFamily] = {}


def register_families(*families: EncoderFamily) -> None:
    """Add encoder families, so that releases of their kinds can be read.

    Raises:
        ValueError: Two families have the same kind.
    """
    for family in families:
        is_taken = family.kind in _KINDS and family is not encoder_family(family.kind)
        if is_taken or _families.setdefault(family.kind, family) is not family:
            raise ValueError(f"two encoder families have the kind {family.kind!r}")


def encoder_kinds() -> Collection[str]:
    """List the kinds of releases that can be read."""
    return {*_KINDS, *_families}


def encoder_family(kind: str) -> EncoderFamily:
    """Look up the encoder family for a kind of release.

    Raises:
        ReleaseError: No family has this kind.
    """
    if kind not in _families and kind in _KINDS:
        module = import_module(f"models.encoders.families.{kind}_family")
        _families[kind] = getattr(module, f"{kind.upper()}_FAMILY")
    if kind not in _families:
        raise ReleaseError(
            f"release kind {kind!r} is unknown to this version of Cinestrata, which knows "
            f"{', '.join(sorted(encoder_kinds()))}"
        )
    return _families[kind]


def open_query_encoder(
    backbone: Backbone | QueryBackbone,
    release: ReleaseState,
    pinned: Mapping[str, ReleaseState],
    previous: QueryEncoder | None = None,
    unchanged_tasks: Collection[str] = (),
) -> QueryEncoder:
    """Build a release's query encoder. See :class:`~models.encoders.query_encoder.QueryEncoderInputs` for arguments.

    A backbone in torch is accepted, too.

    Raises:
        ReleaseError: The release's kind is unknown, or see :class:`~models.encoders.query_encoder.QueryEncoder`.
    """
    if not isinstance(backbone, QueryBackbone):
        from models.encoders.tower_query_backbone import TowerQueryBackbone

        backbone = TowerQueryBackbone(backbone)
    inputs = QueryEncoderInputs(backbone, release, pinned, previous, unchanged_tasks)
    return encoder_family(release.kind).query_encoder(inputs)


def read_query_release(
    folder: Path, *, profiles: bool = True, read_parent: Callable[[str], TaskLineage] | None = None
) -> ReleaseState:
    """Read a release with only the tensors that its query encoder needs.

    Arguments and errors are those of :func:`~models.releases.release_files.read_release`.
    """
    return read_release(
        folder,
        tensor_prefixes=lambda kind: encoder_family(kind).query_prefixes,
        profiles=profiles,
        read_parent=read_parent,
    )


def read_video_release(folder: Path) -> ReleaseState:
    """Read a release with only the tensors that its video encoder needs, without routing profiles and ancestors.

    Errors are those of :func:`~models.releases.release_files.read_release`.
    """
    return read_release(
        folder, tensor_prefixes=lambda kind: encoder_family(kind).video_prefixes, profiles=False
    )


def select_query_tensors(release: ReleaseState) -> ReleaseState:
    """Keep only the tensors that the release's query encoder needs."""
    return _select_tensors(release, encoder_family(release.kind).query_prefixes)


def select_video_tensors(release: ReleaseState) -> ReleaseState:
    """Keep only the tensors that the release's video encoder needs."""
    return _select_tensors(release, encoder_family(release.kind).video_prefixes)


def _select_tensors(release: ReleaseState, prefixes: tuple[str, ...]) -> ReleaseState:
    tensors = {name: tensor for name, tensor in release.tensors.items() if name.startswith(prefixes)}
    return replace(release, tensors=tensors)
