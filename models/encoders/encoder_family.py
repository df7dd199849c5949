"""Encoder families: how a release's weights condition its query encoder and its video encoder.

The ``kind`` field of ``release.json`` names a release's family. A method declares the family of its releases
(``Method.family``), and several methods can share one. To add a family, add a module to
:mod:`models.encoders.families` and register it in :mod:`models.encoders.encoder_registry`.

If a family encodes queries as arrays, its module imports no torch; it imports its video side on use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.encoders.query_encoder import QueryEncoder

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone
    from models.encoders.family_video_encoder import FamilyVideoEncoder


@dataclass(frozen=True)
class EncoderFamily:
    """The encoders that releases of one kind share.

    Attributes:
        kind: Value of the ``kind`` field in ``release.json``.
        query_encoder: Class of query encoders. Its ``modes`` are the query modes that the family offers.
        video_encoder: Class of video encoders, or a function that creates one for a backbone.
        query_prefixes: Name prefixes of the release tensors that query encoders need.
        video_prefixes: Name prefixes of the release tensors that video encoders need.
    """

    kind: str
    query_encoder: type[QueryEncoder]
    video_encoder: Callable[[Backbone], FamilyVideoEncoder]
    query_prefixes: tuple[str, ...]
    video_prefixes: tuple[str, ...]
