"""Family of MoE-Adapters: mixtures of experts in both towers, and a selector that infers the task of a query."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.rivals.encoders.mixture_of_experts import (
    NO_ROUTER,
    ExpertTower,
    TaskSelector,
    encode_frames_with_experts,
    encode_texts_with_experts,
)
from models.encoders.encoder_family import EncoderFamily, FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.encoders.tower_forward import encode_texts
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState, tensors_with_prefix

_TEXT, _SELECTOR, _VISUAL, _TASKS = "moe.text.", "moe.selector.", "moe.visual.", "moe.tasks"
_TOWER_SETTINGS = ("experts", "rank", "top_k", "scale")


class ExpertsQueryEncoder(QueryEncoder):
    """One vector for all tasks under the router that the selector infers; without a selector, under each task's own."""

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone, inputs.release
        # Experts run in parallel to whole blocks with their own attention, so the tower cannot be packed.
        self._backbone = backbone
        self._uses_mixed_precision = backbone.query_precision == "bfloat16"
        settings = {key: release.config[key] for key in _TOWER_SETTINGS}
        self._tower = ExpertTower(backbone.text_width, len(backbone.text_blocks), **settings)
        self._selector = TaskSelector(backbone.dim, release.config["selector_width"])
        try:
            self._tower.load_tensors(tensors_with_prefix(_TEXT, release.tensors))
            self._selector.load_tensors(tensors_with_prefix(_SELECTOR, release.tensors))
            self._routers = release.tensors[_TASKS]
        except (KeyError, RuntimeError) as error:
            raise ReleaseError(f"the experts of the release do not fit its configuration: {error}") from error
        self._tower.to(backbone.device).eval()
        self._selector.to(backbone.device)

    def is_task_independent(self, mode: str) -> bool:
        return len(self._selector) > 0

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        if len(self._selector):
            task = self._selector.select(encode_texts(self._backbone, ids)[0])
            return encode_texts_with_experts(self._backbone, ids, self._tower, task).unsqueeze(0)
        rows = torch.tensor(positions).repeat_interleave(len(ids))
        vectors = self.encode_each(ids.repeat(len(positions), 1), rows, mode)
        return vectors.view(len(positions), len(ids), -1)

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        if len(self._selector):
            return self.encode_for_tasks(ids, (), mode)[0]
        return encode_texts_with_experts(self._backbone, ids, self._tower, self._routers[positions])


class ExpertsVideoEncoder(FamilyVideoEncoder):
    """The image tower with the experts that the router of the release's newest task picks."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        router = _newest_router(release)
        if router == NO_ROUTER:
            return self._encode_with_backbone
        blocks = self._backbone.visual_blocks
        settings = {key: release.config[key] for key in _TOWER_SETTINGS}
        tower = ExpertTower(self._backbone.visual_width, len(blocks), **settings)
        tower.load_tensors(tensors_with_prefix(_VISUAL, release.tensors))
        tower.to(self._backbone.device).eval()
        return lambda frames: encode_frames_with_experts(self._backbone, frames, tower, router)

    @staticmethod
    def fingerprint_tensors(release: ReleaseState) -> dict[str, Tensor]:
        """Experts and the newest task's router: the tensors that the video encoder computes with."""
        router = _newest_router(release)
        if router == NO_ROUTER:
            return {}
        return {
            name: tensor
            for name, tensor in release.tensors.items()
            if name.startswith(_VISUAL) and (".experts." in name or name.endswith(f".routers.{router}"))
        }


def _newest_router(release: ReleaseState) -> int:
    """Number of the router of the newest task, or ``NO_ROUTER``."""
    routers = release.tensors[_TASKS].tolist()
    return int(routers[-1]) if routers else NO_ROUTER


EXPERTS_FAMILY = EncoderFamily(
    kind="moe",
    query_encoder=ExpertsQueryEncoder,
    video_encoder=ExpertsVideoEncoder,
    query_prefixes=(_TEXT, _SELECTOR, _TASKS),
    video_prefixes=(_VISUAL, _TASKS),
)
