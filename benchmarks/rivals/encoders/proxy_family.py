"""Family of fine-tuned towers whose image tower has video proxies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from benchmarks.rivals.encoders.video_proxy import VideoProxies, encode_with_proxies
from models.encoders.families.tower_family import TOWER_FAMILY, TowerVideoEncoder
from models.releases.release_state import ReleaseState, tensors_with_prefix

_PROXIES = "proxies."


class ProxyVideoEncoder(TowerVideoEncoder):
    """A fine-tuned image tower with video proxies."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        tower, tensors = self._load_tower(release), tensors_with_prefix(_PROXIES, release.tensors)
        proxies = VideoProxies(self._backbone, len(tensors["added"]) + 1)
        proxies.load_state_dict(tensors)
        proxies.to(self._backbone.device)
        return lambda frames: encode_with_proxies(tower, frames, proxies)


PROXY_FAMILY = replace(
    TOWER_FAMILY,
    kind="proxies",
    video_encoder=ProxyVideoEncoder,
    video_prefixes=(*TOWER_FAMILY.video_prefixes, _PROXIES),
)
