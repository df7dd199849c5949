"""From frames to one video vector per task: the half of a release that its videos were embedded with.

The counterpart of :mod:`models.encoders.query_encoder`, for clips that are searched with. Every shard was made by the image side
of its own release and is compared with nothing else, so a clip is embedded anew for every encoder that made one of the
searched shards; shards of one encoder share the vector. What differs from release to release is small for some methods
(adapters), and a whole image tower for others. It is read when it is first wanted, and what was used last stays in
memory up to a bound.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.adapters.frame_fusion import FrameFusion
from models.adapters.low_rank import LowRankTower
from models.adapters.mixture_of_experts import FROZEN, ExpertTower, adapted_frames
from models.adapters.video_proxy import VideoProxies, encode_with_proxies
from models.backbones.loading import Backbone
from models.encoders.tower_forward import encode_frames
from models.errors import ReleaseError
from models.releases.release_files import ReleaseState, under, video_fingerprint

__all__ = ["VideoEncoder"]

Vectors = npt.NDArray[np.float32]
Encode = Callable[[Tensor], Tensor]

_KEPT = 512 * 1024**2  # bytes of image-side weights, of all releases together
_IMAGE, _FFA, _VISUAL, _PROXIES = "image.", "ffa.", "clip.visual.", "proxies."
_MOE, _MOE_TASKS = "moe.visual.", "moe.tasks"


class VideoEncoder:
    """Embeds frames as the videos of given tasks were. Safe to be shared by threads; one forward at a time.

    Args:
        backbone: that the releases were learned on. Not changed.
        fingerprints: by task id, of the video encoder that made its shard.
        makers: by task id, the release that made its shard; read when asked for.
        keep: bytes of weights that stay in memory.

    Attributes:
        tasks: ids of the tasks that it can embed for.
    """

    def __init__(
        self,
        backbone: Backbone,
        fingerprints: Mapping[str, str],
        makers: Mapping[str, ReleaseState],
        *,
        keep: int = _KEPT,
    ) -> None:
        self.tasks = list(fingerprints)
        self._backbone = backbone
        self._fingerprints = fingerprints
        self._makers = makers
        self._keep = keep
        self._lock = Lock()
        self._known: OrderedDict[str, ReleaseState] = OrderedDict()  # image side alone, by fingerprint
        self._tower: Backbone | None = None  # whose image tower takes on that of any release
        self._low_rank: tuple[tuple[Any, ...], LowRankTower] | None = None  # likewise, by rank and scale

    @torch.inference_mode()
    def encode(self, frames: Tensor, tasks: Sequence[str]) -> Vectors:
        """One unit vector per clip and task, ``[n, len(tasks), dim]``, in the space of that task's shard.

        Args:
            frames: ``uint8 [n, M, H, W, 3]``, as many and as large as the backbone wants them.
            tasks: ids.

        Raises:
            ReleaseError: an unknown task, frames of another shape, or a release without what its videos were embedded
                with.
        """
        count, size = self._backbone.spec
        if frames.ndim != 5 or tuple(frames.shape[1:]) != (count, size, size, 3):
            raise ReleaseError(f"frames are {list(frames.shape)}, not [n, {count}, {size}, {size}, 3]")
        unknown = [task for task in tasks if task not in self._fingerprints]
        if unknown:
            raise ReleaseError(f"the release has not learned {', '.join(unknown)}")
        found: dict[str, Vectors] = {}
        with self._lock:
            for task in tasks:
                fingerprint = self._fingerprints[task]
                if fingerprint not in found:
                    vectors = self._encoder(self._state(task, fingerprint))(frames)
                    found[fingerprint] = vectors.float().cpu().numpy()
        dim = self._backbone.dim
        chosen = [found[self._fingerprints[task]] for task in tasks]
        return np.stack(chosen, axis=1) if chosen else np.empty((len(frames), 0, dim), np.float32)

    @property
    def held(self) -> int:
        """Bytes of weights that are in memory now."""
        return sum(_bytes(state) for state in self._known.values())

    def _state(self, task: str, fingerprint: str) -> ReleaseState:
        """The image side of the release that made a task's shard, which is certain to be the one that did."""
        if fingerprint in self._known:
            self._known.move_to_end(fingerprint)
            return self._known[fingerprint]
        if task not in self._makers:
            raise ReleaseError(f"the release that made the shard of task {task!r} is missing")
        state = self._makers[task].for_videos()
        found = video_fingerprint(self._backbone, state.frames, _identity(state))
        if found != fingerprint:
            raise ReleaseError(
                f"the release that made the shard of task {task!r} does not hold the video encoder that embedded it "
                f"(fingerprint {fingerprint[:12]}, found {found[:12]})"
            )
        self._known[fingerprint] = state
        while len(self._known) > 1 and self.held > self._keep:
            self._known.popitem(last=False)
        return state

    def _encoder(self, state: ReleaseState) -> Encode:
        tensors, backbone = state.tensors, self._backbone
        try:
            if state.kind == "low_rank":
                tower, fusion = self._updated(state), _fusion(backbone, state)
                return lambda frames: encode_frames(tower.backbone, frames, fusion)[0]
            if state.kind == "tame":
                fusion = _fusion(backbone, state)
                return lambda frames: encode_frames(backbone, frames, fusion)[0]
            if state.kind == "moe" and _router(state) != FROZEN:
                experts = _experts(backbone, state)
                return lambda frames: adapted_frames(backbone, frames, experts, _router(state))
            if state.kind in ("tower", "mapped"):
                tuned = self._tuned(tensors)
                added = under(_PROXIES, tensors)
                if not added:
                    return lambda frames: encode_frames(tuned, frames)[0]
                proxies = VideoProxies(backbone, len(added["added"]) + 1)
                proxies.load_state_dict(added)
                proxies.to(backbone.device)
                return lambda frames: encode_with_proxies(tuned, frames, proxies)
        except (KeyError, RuntimeError) as error:
            raise ReleaseError(f"the image side of the release does not fit the backbone: {error}") from error
        return lambda frames: encode_frames(backbone, frames)[0]

    def _updated(self, state: ReleaseState) -> LowRankTower:
        """The image tower with a release's low-rank updates."""
        sizes = state.config["image_rank"], state.config["scale"]
        if self._low_rank is None or self._low_rank[0] != sizes:
            with torch.inference_mode(False):  # weights that are to be written again and again
                self._low_rank = sizes, LowRankTower(self._copy(), rank=sizes[0], scale=sizes[1])
        tower = self._low_rank[1]
        tower.load_tensors(under(_IMAGE, state.tensors))
        return tower

    def _tuned(self, tensors: Mapping[str, Tensor]) -> Backbone:
        """The backbone with a release's image tower."""
        if self._tower is None:
            with torch.inference_mode(False):
                self._tower = self._copy()
        self._tower.clip.visual.load_state_dict(under(_VISUAL, tensors))
        return self._tower

    def _copy(self) -> Backbone:
        """The backbone with an image tower of its own; everything else is shared."""
        visual = {id(p) for p in self._backbone.clip.visual.parameters()}
        shared = {id(p): p for p in self._backbone.parameters() if id(p) not in visual}
        return copy.deepcopy(self._backbone, shared)


def _identity(state: ReleaseState) -> dict[str, Tensor]:
    """What the fingerprint of a video encoder is made of: all of its weights, and of MoE only what the task uses."""
    if state.kind != "moe":
        return state.tensors
    number = _router(state)
    if number == FROZEN:
        return {}
    return {
        name: tensor
        for name, tensor in state.tensors.items()
        if name.startswith(_MOE) and (".experts." in name or name.endswith(f".routers.{number}"))
    }


def _router(state: ReleaseState) -> int:
    """The router of the newest task of a release of MoE-Adapters."""
    routers = state.tensors[_MOE_TASKS].tolist()
    return int(routers[-1]) if routers else FROZEN


def _experts(backbone: Backbone, state: ReleaseState) -> ExpertTower:
    sizes = {key: state.config[key] for key in ("experts", "rank", "top_k", "scale")}
    width = backbone.visual_blocks[0].attn.embed_dim
    tower = ExpertTower(width, len(backbone.visual_blocks), **sizes)
    tower.load_tensors(under(_MOE, state.tensors))
    return tower.to(backbone.device).eval()


def _fusion(backbone: Backbone, state: ReleaseState) -> FrameFusion:
    attention = backbone.visual_blocks[0].attn
    fusion = FrameFusion(
        attention.embed_dim,
        attention.num_heads,
        len(backbone.visual_blocks),
        layers=state.config["ffa_layers"],
        neighbour=state.config["ffa_neighbour"],
        mix=state.config["ffa_mix"],
    )
    fusion.load_state_dict(under(_FFA, state.tensors))
    return fusion.to(backbone.device)


def _bytes(state: ReleaseState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.tensors.values())
