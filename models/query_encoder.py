"""From text to one query vector per task: the half of a release that serves searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.backbone import Backbone
from models.errors import ReleaseError
from models.release import ReleaseState
from models.routing import token_presence
from models.tame import BARE, Condition, Tame, TameWeights
from models.towers import encode_texts

__all__ = ["Mode", "QueryEncoder", "build_tame"]

Mode = Literal["latest", "pinned"]
Vectors = npt.NDArray[np.float32]


class QueryEncoder:
    """Encodes texts under the tasks of a release.

    In mode ``latest`` every task is asked with the newest weights and the task's own prototype, as in
    ctvr-ffa-tame. In mode ``pinned`` it is asked with the weights of the release that made its shard, so that
    its queries, like its vectors, never move again. Both take one batched forward.

    Attributes:
        tasks: ids of the learned tasks, in order.
        modes: those that the release's method offers.
    """

    def __init__(self, backbone: Backbone, release: ReleaseState) -> None:
        if release.backbone_fingerprint != backbone.fingerprint:
            raise ReleaseError(
                f"the release was learned on another backbone than {backbone.name!r} "
                f"(fingerprint {release.backbone_fingerprint[:12]}, loaded {backbone.fingerprint[:12]}): "
                f"start with CINESTRATA_BACKBONE={release.backbone} and the weights it was learned with"
            )
        self.tasks = [task.task_id for task in release.tasks]
        self.modes: tuple[str, ...] = ("latest",)
        self._backbone = backbone
        self._position = {task: position for position, task in enumerate(self.tasks)}

    @classmethod
    def open(
        cls, backbone: Backbone, release: ReleaseState, pinned: Mapping[str, ReleaseState]
    ) -> QueryEncoder:
        """The encoder of a release.

        Args:
            release: the newest.
            pinned: for each task, the release that made its shard.

        Raises:
            ReleaseError: the release was learned on another backbone, or a pinned release is missing.
        """
        if release.kind == "frozen":
            return _FrozenEncoder(backbone, release)
        if release.kind == "tower":
            return _TowerEncoder(backbone, release)
        return _TameEncoder(backbone, release, pinned)

    @torch.inference_mode()
    def frozen(self, texts: Sequence[str]) -> Vectors:
        """Text vectors of the backbone as it came, ``[n, dim]``, unit length."""
        return _numpy(encode_texts(self._backbone, self._backbone.tokenize(texts))[0])

    def words(self, texts: Sequence[str]) -> Vectors:
        """Which tokens each text holds, ``[n, V]``: what candidate tasks are found by (``models.routing``)."""
        ids = self._backbone.tokenize(texts)
        return _numpy(token_presence(ids, self._backbone.end_of_text(ids), self._backbone.vocabulary))

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        """One unit vector per text and task, ``[n, len(tasks), dim]``, in the space of that task's shard.

        Raises:
            ReleaseError: a task that the release has not learned, or a mode that it does not offer.
        """
        if mode not in self.modes:
            raise ReleaseError(f"this release cannot query in mode {mode!r}, only in {', '.join(self.modes)}")
        unknown = [task for task in tasks if task not in self._position]
        if unknown:
            raise ReleaseError(f"the release has not learned {', '.join(unknown)}")
        positions = [self._position[task] for task in tasks]
        encoded = self._encode(self._backbone.tokenize(texts), positions, mode)
        return _numpy(encoded.transpose(0, 1).expand(len(texts), len(tasks), -1))

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        """``[C or 1, n, dim]``."""
        raise AssertionError("opened through QueryEncoder.open")


class _FrozenEncoder(QueryEncoder):
    """The backbone itself: nothing is learned, so nothing can move, and both modes are one."""

    def __init__(self, backbone: Backbone, release: ReleaseState) -> None:
        super().__init__(backbone, release)
        self.modes = ("latest", "pinned")

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._backbone, ids)


class _TowerEncoder(QueryEncoder):
    """A fine-tuned text tower: one vector for all tasks, and no small snapshot to pin."""

    def __init__(self, backbone: Backbone, release: ReleaseState) -> None:
        super().__init__(backbone, release)
        self._tower = backbone.clone()
        # A release may hold more than the towers: momentum encoders, queues, importances, a replay buffer.
        self._tower.load_tensors({n: t for n, t in release.tensors.items() if n.startswith("clip.")})

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._tower, ids)


class _TameEncoder(QueryEncoder):
    """TAME under every task's prototype, with the newest weights or each shard's own."""

    def __init__(self, backbone: Backbone, release: ReleaseState, pinned: Mapping[str, ReleaseState]) -> None:
        super().__init__(backbone, release)
        self.modes = ("latest", "pinned")
        self._tame = build_tame(backbone, release)
        conditions: list[Condition] = []
        for position, task in enumerate(self.tasks):
            if task not in pinned:
                raise ReleaseError(f"the release that made the shard of task {task!r} is missing")
            state = pinned[task]
            if state.kind == "frozen":  # the shard predates the first adapters, and so do its queries
                conditions.append(
                    replace(
                        self._tame.condition([position]), experts=torch.tensor([BARE], device=backbone.device)
                    )
                )
                continue
            tame = self._tame if state is release else build_tame(backbone, state)
            conditions.append(tame.condition([position]))
        self._pinned = conditions

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        if mode == "latest":
            return encode_texts(self._backbone, ids, self._tame.condition(positions))
        chosen = [self._pinned[position] for position in positions]
        return encode_texts(
            self._backbone,
            ids,
            Condition(
                weights=TameWeights.stack([c.weights for c in chosen]),
                prototypes=torch.cat([c.prototypes for c in chosen]),
                experts=torch.cat([c.experts for c in chosen]),
                top_k=chosen[0].top_k,
                scale=chosen[0].scale,
            ),
        )


def build_tame(backbone: Backbone, release: ReleaseState) -> Tame:
    """The text adapters of a release, in evaluation mode.

    Raises:
        ReleaseError: the release's tensors do not fit its configuration.
    """
    config: dict[str, Any] = release.config
    tame = Tame(
        backbone.text_width,
        len(backbone.text_blocks),
        experts=config["experts"],
        rank=config["rank"],
        top_k=config["top_k"],
        scale=config["scale"],
        dropout=config["dropout"],
    )
    try:
        tame.load_tensors(
            {n.removeprefix("tame."): t for n, t in release.tensors.items() if n.startswith("tame.")}
        )
    except (KeyError, RuntimeError) as error:
        raise ReleaseError(f"the adapters of the release do not fit its configuration: {error}") from error
    return tame.to(backbone.device).eval()


def _numpy(vectors: Tensor) -> Vectors:
    return np.ascontiguousarray(vectors.float().cpu().numpy())
