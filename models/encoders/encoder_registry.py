"""Encoder families: how a release's weights condition its query encoder and its video encoder.

The ``kind`` field of ``release.json`` names a release's family. A method declares the family of its releases
(``Method.family``), and several methods can share one. A family's module is imported when a release of its kind is
read: only families that adapt the text tower need torch for queries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from models.backbones import SMALL_NAMES, Precision, has_open_blocks
from models.backbones.backbone_loading import import_library, load_backbone
from models.backbones.frozen_tower import warn_unavailable
from models.backbones.query_backbone import QueryBackbone, apply_torch_threads
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.errors import BackboneUnavailable, ReleaseError
from models.releases.release_files import read_release
from models.releases.release_state import MEASURED, Array, ReleaseState, TaskLineage

if TYPE_CHECKING:
    from torch import Tensor

    from models.backbones.backbone import Backbone

# Function from a release to a function from frames ``uint8 [n, M, H, W, 3]`` to unit video vectors ``[n, dim]``, which
# is valid until another release is loaded. It raises KeyError or RuntimeError if the release's tensors or settings do
# not fit the backbone, and must not be shared between threads.
VideoLoader = Callable[[ReleaseState], "Callable[[Tensor], Tensor]"]


@dataclass(frozen=True)
class EncoderFamily:
    """The encoders that releases of one kind share."""

    kind: str  # value of the kind field in release.json
    # class of query encoders. Its modes are the query modes that the family offers
    query_encoder: type[QueryEncoder]
    # function that opens a loader of video encoders on a backbone, which it does not modify
    video_loader: Callable[[Backbone], VideoLoader]
    query_prefixes: tuple[str, ...]  # name prefixes of the release tensors that query encoders need
    video_prefixes: tuple[str, ...]  # name prefixes of the release tensors that video encoders need


# The module of each kind's family.
_MODULES = {
    "analytic": "frozen_families",
    "frozen": "frozen_families",
    "low_rank": "adapted_families",
    "tame": "adapted_families",
    "tower": "adapted_families",
}


def encoder_family(kind: str) -> EncoderFamily:
    """Look up the encoder family for a kind of release; raise ReleaseError if no family has this kind."""
    if kind not in _MODULES:
        raise ReleaseError(
            f"release kind {kind!r} is unknown to this version of Cinestrata, which has {', '.join(_MODULES)}"
        )
    module = import_module(f"models.encoders.{_MODULES[kind]}")
    family: EncoderFamily = getattr(module, f"{kind.upper()}_FAMILY")
    return family


def open_query_encoder(
    backbone: Backbone | QueryBackbone,
    release: ReleaseState,
    pinned: Mapping[str, ReleaseState],
    previous: QueryEncoder | None = None,
    unchanged_tasks: Collection[str] = (),
) -> QueryEncoder:
    """Build a release's query encoder on a backbone, also one in torch, with
    :class:`~models.encoders.query_encoder.QueryEncoderInputs`; raise ReleaseError if its kind is unknown, or as the
    encoder does.
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


def split_training_state(release: ReleaseState) -> tuple[ReleaseState, dict[str, Array]]:
    """Separate the tensors that no encoder reads, which only continuing the release needs."""
    family = encoder_family(release.kind)
    served = _select_tensors(release, (*family.query_prefixes, *family.video_prefixes, MEASURED))
    training = {name: tensor for name, tensor in release.tensors.items() if name not in served.tensors}
    return (replace(served, is_partial=True) if training else release), training


def _select_tensors(release: ReleaseState, prefixes: tuple[str, ...]) -> ReleaseState:
    tensors = {name: tensor for name, tensor in release.tensors.items() if name.startswith(prefixes)}
    return replace(release, tensors=tensors)


_CPU = "cpu"


def check_device(name: str) -> None:
    """Check that a device can be used; raise ModelError if it is unknown, or ``cuda`` without a usable GPU."""
    if name != _CPU:
        from models.backbones.tower_computation import compute_device

        compute_device(name)


def import_query_library(name: str, *, device: str = _CPU, precision: Precision = "float32") -> None:
    """Import what :func:`load_query_backbone` needs for the same arguments, if that takes seconds."""
    if _needs_torch(name, device, precision):
        import_library(name)


def _needs_torch(name: str, device: str, precision: Precision) -> bool:
    return name not in SMALL_NAMES or (device, precision) != (_CPU, "float32")


def load_query_backbone(
    name: str, frames: int | None = None, *, device: str = _CPU, precision: Precision = "float32"
) -> QueryBackbone:
    """Load the text side of a backbone on ``cpu``, ``cuda``, or ``auto``, a GPU if one is available.

    Raises BackboneUnavailable if the name is unknown or the weights cannot be fetched, and ModelError as
    :func:`check_device` does.
    """
    if not _needs_torch(name, device, precision):
        try:
            from models.backbones.small.text_side import SmallTextSide

            return SmallTextSide(name, frames)
        except BackboneUnavailable:
            raise
        except Exception as error:  # a broken library may raise anything when it is imported or used
            warn_unavailable(f"{type(error).__name__}: {error}")
    from models.backbones.tower_computation import compute_device
    from models.encoders.tower_query_backbone import TowerQueryBackbone

    apply_torch_threads()
    load = partial(load_backbone, name, frames)
    backbone = load(text_only=True).to(compute_device(device))
    backbone.query_precision = precision
    is_whole = has_open_blocks(name)
    return TowerQueryBackbone(backbone, None if is_whole else lambda: load().to(backbone.device))
