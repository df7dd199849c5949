"""From text to one query vector per task: the half of a release that serves searches."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.mixture_of_experts import ExpertTower, Selector, adapted_texts
from models.adapters.tame import BARE, Condition, Tame, TameWeights
from models.adapters.text_update import TextUpdates, compact
from models.backbones.loading import Backbone
from models.backbones.packed_text_tower import query_tower
from models.backbones.precision import mixed_precision
from models.encoders.tower_forward import PerText, encode_texts, start_of_text
from models.errors import ReleaseError
from models.releases.release_files import ReleaseState, under
from models.routing.router import token_presence

__all__ = ["QueryEncoder", "Tokens", "build_tame"]

Vectors = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]

_BATCH = {"cpu": 64, "cuda": 512}  # texts of one forward: what a CPU's caches hold, and what fills a GPU
# Products of a tower for each thread, some milliseconds; less is not faster beside each other.
_WORTH = 15 * 10**7
# Products that are spared where what is kept of the start of texts takes their place; to put it there costs as much.
_SPARED = 10**8


class QueryEncoder:
    """Encodes texts under the tasks of a release.

    In mode ``latest`` every task is asked with the newest weights and the task's own prototype, as in
    ctvr-ffa-tame. In mode ``pinned`` it is asked with the weights of the release that made its shard, so that
    its queries, like its vectors, never move again. Both take one batched forward. In mode ``mapped`` the newest
    vector is taken into the space of each shard by a map of its own.

    Attributes:
        tasks: ids of the learned tasks, in order.
        modes: those that the release's method offers; the one that keeps most of what was found is last.
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
        self._backbone = query_tower(backbone)
        # A packed tower has a precision of its own.
        self._mixed = self._backbone is backbone and backbone.query_precision == "bfloat16"
        self._position = {task: position for position, task in enumerate(self.tasks)}

    @classmethod
    def open(
        cls,
        backbone: Backbone,
        release: ReleaseState,
        pinned: Mapping[str, ReleaseState],
        other: QueryEncoder | None = None,
        same: Collection[str] = (),
    ) -> QueryEncoder:
        """The encoder of a release.

        Args:
            release: the newest.
            pinned: for each task, the release that made its shard.
            other: an encoder of another release of the library, on the same backbone. It stays as it is.
            same: tasks whose shards' release it was given too: what it keeps of that is taken over where it keeps
                anything, and the release not asked for.

        Raises:
            ReleaseError: the release was learned on another backbone, or a pinned release is missing.
        """
        if release.kind == "frozen":
            return _FrozenEncoder(backbone, release)
        if release.kind == "tower":
            return _TowerEncoder(backbone, release)
        if release.kind == "mapped":
            return _MappedEncoder(backbone, release)
        if release.kind == "moe":
            return _MoeEncoder(backbone, release)
        if release.kind == "low_rank":
            return _LowRankEncoder(backbone, release, pinned, other, same)
        return _TameEncoder(backbone, release, pinned, other, same)

    @torch.inference_mode()
    def frozen(self, texts: Sequence[str]) -> Vectors:
        """Text vectors of the backbone as it came, ``[n, dim]``, unit length."""
        return _numpy(encode_texts(self._backbone, self._backbone.tokenize(texts))[0])

    def words(self, texts: Sequence[str]) -> Vectors:
        """Which tokens each text holds, ``[n, V]``: what candidate tasks are found by (``models.routing.router``)."""
        ids = self._backbone.tokenize(texts)
        return _numpy(token_presence(ids, self._backbone.end_of_text(ids), self._backbone.vocabulary))

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        """One unit vector per text and task, ``[n, len(tasks), dim]``, in the space of that task's shard.

        Raises:
            ReleaseError: a task that the release has not learned, or a mode that it does not offer.
        """
        positions = self._positions(tasks, mode)
        ids = self._backbone.tokenize(texts)
        lengths = self._backbone.end_of_text(ids) + 1
        order = lengths.argsort(stable=True)
        # Texts of like length together, each batch as long as its longest: little is computed for padding.
        batches = torch.split(order, _BATCH.get(self._backbone.device.type, len(order)))
        with mixed_precision(enabled=self._mixed):
            parts = [self._encode(ids[rows, : int(lengths[rows].max())], positions, mode) for rows in batches]
        encoded = torch.cat(parts, dim=1)[:, order.argsort()]
        return _numpy(encoded.transpose(0, 1).expand(len(texts), len(tasks), -1))

    def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Token ids of each text ``[L]``, with the marks of its start and end and without padding."""
        ids = self._backbone.tokenize(texts)
        lengths = (self._backbone.end_of_text(ids) + 1).tolist()
        rows = ids.cpu().numpy()
        return [row[:length].astype(np.int64) for row, length in zip(rows, lengths, strict=True)]

    def encode_pairs(self, texts: Sequence[Tokens], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        """Text i under task i, ``[n, dim]``: as :meth:`encode` gives it, for those pairs alone that are wanted.

        All are rows of one batch. Frozen weights are shared by all rows, low-rank updates are gathered for each.

        Args:
            texts: from :meth:`tokens`.

        Raises:
            ReleaseError: as :meth:`encode`.
        """
        positions = torch.tensor(self._positions(tasks, mode))
        lengths = np.array([len(text) for text in texts])
        encoded = np.empty((len(texts), self._backbone.dim), np.float32)

        def encode(rows: npt.NDArray[np.int64]) -> None:
            ids = torch.zeros(len(rows), int(lengths[rows].max()), dtype=torch.int64)  # 0 pads, everywhere
            for place, row in enumerate(rows):
                ids[place, : lengths[row]] = torch.from_numpy(texts[row])
            # Both count for the thread alone in which they are set.
            with torch.inference_mode(), mixed_precision(enabled=self._mixed):
                vectors = self._encode_rows(ids.to(self._backbone.device), positions[rows], mode)
            encoded[rows] = _numpy(vectors)

        threads = self._threads(int(lengths.sum()))
        # Texts of like length together, and as much for each thread.
        rounds = -(-len(texts) // (threads * _BATCH.get(self._backbone.device.type, len(texts) or 1)))
        order = np.argsort(lengths, kind="stable")
        parts = [part for part in np.array_split(order, max(threads * rounds, 1)) if len(part)]
        left = iter(parts)

        def work() -> None:
            for part in left:  # of a list, so threads can share it
                encode(part)

        # This thread runs on a core already; a second one that is woken with it may have to wait for that.
        others = [_pool().submit(work) for _ in range(min(threads, len(parts)) - 1)]
        work()
        for other in others:
            other.result()
        return encoded

    def _threads(self, tokens: int) -> int:
        """In how many threads so many tokens are encoded: in as many as there are cores where each has enough to do,
        if torch does not divide the work by itself."""
        backbone = self._backbone
        if backbone.device.type != "cpu" or not backbone.open_blocks or torch.get_num_threads() > 1:
            return 1
        return max(1, min(len(os.sched_getaffinity(0)), self._products(tokens) // _WORTH))

    def _products(self, tokens: int) -> int:
        """Of so many tokens with the matrices of an open text tower."""
        return 12 * self._backbone.text_width**2 * len(self._backbone.text_blocks) * tokens

    def shared(self, mode: str) -> bool:
        """Whether a text has one vector for all tasks."""
        return False

    def anchor(self, task: str, mode: str) -> str | None:
        """Identity of what encodes a text under a task, where no later release can change it; None where one may.

        As long as it stays the same, a text comes to the same vector, but for rounding.
        """
        return None

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        """``[C or 1, n, dim]``."""
        raise AssertionError("opened through QueryEncoder.open")

    def _encode_rows(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        """``[n, dim]``, each text under the task at its own position ``[n]``; here, where one vector serves all."""
        return self._encode(ids, (), mode)[0]

    def _positions(self, tasks: Sequence[str], mode: str) -> list[int]:
        if mode not in self.modes:
            raise ReleaseError(f"this release cannot query in mode {mode!r}, only in {', '.join(self.modes)}")
        unknown = dict.fromkeys(task for task in tasks if task not in self._position)
        if unknown:
            raise ReleaseError(f"the release has not learned {', '.join(unknown)}")
        return [self._position[task] for task in tasks]

    @staticmethod
    def _maker(task: str, pinned: Mapping[str, ReleaseState]) -> ReleaseState:
        """The release that made the shard of a task."""
        if task not in pinned:
            raise ReleaseError(f"the release that made the shard of task {task!r} is missing")
        return pinned[task]


class _FrozenEncoder(QueryEncoder):
    """The backbone itself: nothing is learned, so nothing can move, and both modes are one."""

    def __init__(self, backbone: Backbone, release: ReleaseState) -> None:
        super().__init__(backbone, release)
        self.modes = ("latest", "pinned")

    def shared(self, mode: str) -> bool:
        return True

    def anchor(self, task: str, mode: str) -> str | None:
        return self._backbone.fingerprint

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._backbone, ids)


class _TowerEncoder(QueryEncoder):
    """A fine-tuned text tower: one vector for all tasks, and no small snapshot to pin."""

    def __init__(self, backbone: Backbone, release: ReleaseState) -> None:
        super().__init__(backbone, release)
        tower = backbone.clone()
        # A release may hold more than the towers: momentum encoders, queues, importances, a replay buffer.
        tower.load_tensors({n: t for n, t in release.tensors.items() if n.startswith("clip.")})
        self._tower = query_tower(tower)

    def shared(self, mode: str) -> bool:
        return mode == "latest"

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._tower, ids)


class _MappedEncoder(_TowerEncoder):
    """A fine-tuned text tower, and for every task a map x ↦ xM + s into the space that its shard was made in.

    Release tensors ``maps [T, dim, dim]`` and ``shifts [T, dim]``; M = I and s = 0 for the newest task. Mapped vectors
    are brought back to unit length, so that the cosines of all shards have one scale.
    """

    def __init__(self, backbone: Backbone, release: ReleaseState) -> None:
        super().__init__(backbone, release)
        self.modes = ("latest", "mapped")
        tasks, dim = len(self.tasks), backbone.dim
        for name, shape in (("maps", (tasks, dim, dim)), ("shifts", (tasks, dim))):
            found = tuple(release.tensors[name].shape) if name in release.tensors else None
            if found != shape:
                raise ReleaseError(f"the release's {name} are of shape {found}, not {shape}")
        self._maps = release.tensors["maps"].to(backbone.device)
        self._shifts = release.tensors["shifts"].to(backbone.device)

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        newest = super()._encode(ids, positions, mode)  # [1, n, dim]
        if mode == "latest":
            return newest
        chosen = list(positions)
        return F.normalize(newest @ self._maps[chosen] + self._shifts[chosen].unsqueeze(1), dim=-1)

    def _encode_rows(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        # A text goes through the tower once for all its tasks.
        once, place = np.unique(ids.cpu().numpy(), axis=0, return_inverse=True)
        newest = super()._encode(torch.from_numpy(once), (), "latest")[0, torch.from_numpy(place)]
        if mode == "latest":
            return newest
        mapped = (newest.unsqueeze(1) @ self._maps[positions]).squeeze(1) + self._shifts[positions]
        return F.normalize(mapped, dim=-1)


class _MoeEncoder(QueryEncoder):
    """MoE-Adapters: one vector for all tasks under the router that the selector finds, or one under each task's."""

    def __init__(self, backbone: Backbone, release: ReleaseState) -> None:
        super().__init__(backbone, release)
        # Experts stand beside whole blocks, which bring their own attention.
        self._backbone, self._mixed = backbone, backbone.query_precision == "bfloat16"
        config: dict[str, Any] = release.config
        width, depth = backbone.text_width, len(backbone.text_blocks)
        sizes = {key: config[key] for key in ("experts", "rank", "top_k", "scale")}
        self._tower = ExpertTower(width, depth, **sizes)
        self._selector = Selector(backbone.dim, config["selector_width"])
        try:
            self._tower.load_tensors(under("moe.text.", release.tensors))
            self._selector.load_tensors(under("moe.selector.", release.tensors))
            self._routers = release.tensors["moe.tasks"]
        except (KeyError, RuntimeError) as error:
            raise ReleaseError(f"the experts of the release do not fit its configuration: {error}") from error
        self._tower.to(backbone.device).eval()
        self._selector.to(backbone.device)

    def shared(self, mode: str) -> bool:
        return len(self._selector) > 0

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        if len(self._selector):
            task = self._selector.select(encode_texts(self._backbone, ids)[0])
            return adapted_texts(self._backbone, ids, self._tower, task).unsqueeze(0)
        rows = torch.tensor(positions).repeat_interleave(len(ids))
        return self._encode_rows(ids.repeat(len(positions), 1), rows, mode).view(len(positions), len(ids), -1)

    def _encode_rows(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        if len(self._selector):
            return self._encode(ids, (), mode)[0]
        return adapted_texts(self._backbone, ids, self._tower, self._routers[positions])


class _TameEncoder(QueryEncoder):
    """TAME under every task's prototype, with the newest weights or each shard's own."""

    _pinned: Condition
    _sets: list[int]  # which of its adapters each task has

    def __init__(
        self,
        backbone: Backbone,
        release: ReleaseState,
        pinned: Mapping[str, ReleaseState],
        other: QueryEncoder | None,
        same: Collection[str],
    ) -> None:
        super().__init__(backbone, release)
        self.modes = ("latest", "pinned")
        self._tame = build_tame(backbone, release)
        self._makers = pinned
        adapters = [self._tame.weights()]
        prototypes, experts, sets = [], [], []
        for position, task in enumerate(self.tasks):
            # A frozen shard predates the first adapters, and so do its queries.
            prototype, expert, weights = self._tame.prototypes[position], BARE, None
            if isinstance(other, _TameEncoder) and task in same:
                held, place = other._pinned, other._position[task]
                prototype, expert = held.prototypes[place], int(held.experts[place])
                weights = held.weights.only(other._sets[place]) if expert != BARE else None
            elif (state := self._maker(task, pinned)).kind != "frozen":
                tame = self._tame if state is release else build_tame(backbone, state)
                prototype, expert = tame.prototypes[position], tame.task_experts[position]
                weights = tame.weights() if tame is not self._tame else None
            prototypes.append(prototype)
            experts.append(expert)
            sets.append(len(adapters) if weights else 0)
            adapters += [weights] if weights else []
        self._sets = sets
        device = backbone.device
        self._pinned = Condition(
            weights=TameWeights.stack(adapters),
            prototypes=torch.stack(prototypes),
            experts=torch.tensor(experts, device=device),
            top_k=self._tame.top_k,
            scale=self._tame.scale,
            sets=torch.tensor(sets, device=device),
        )

    def anchor(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        maker = self._makers[task]
        if maker.kind == "frozen":
            return self._backbone.fingerprint
        sizes = [maker.backbone_fingerprint, maker.config.get("top_k", 1), maker.config["scale"]]
        return f"{self._position[task]} of {_identity(sizes, under('tame.', maker.tensors))}"

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._backbone, ids, self._condition(positions, mode))

    def _encode_rows(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        return encode_texts(self._backbone, ids, PerText(self._condition(positions.tolist(), mode)))[0]

    def _condition(self, positions: Sequence[int], mode: str) -> Condition:
        if mode == "latest":
            return self._tame.condition(positions)
        return self._pinned.choose(torch.tensor(positions, device=self._backbone.device))


class _LowRankEncoder(QueryEncoder):
    """Every shard's own update of the text tower, or the newest for all."""

    _pinned: TextUpdates
    _starts: Tensor  # of texts under the update of each task, [layers, 2, T, 1, d]

    def __init__(
        self,
        backbone: Backbone,
        release: ReleaseState,
        pinned: Mapping[str, ReleaseState],
        other: QueryEncoder | None,
        same: Collection[str],
    ) -> None:
        super().__init__(backbone, release)
        self.modes = ("latest", "pinned")
        self._newest = _text_updates(backbone, release)
        held = other if isinstance(other, _LowRankEncoder) else None
        # The first ones together: cut out one by one, their words would be copied once more.
        pairs = zip(self.tasks, held.tasks if held else (), strict=False)
        first = len(list(takewhile(lambda pair: pair[0] == pair[1] and pair[0] in same, pairs)))
        parts = [held._pinned.part(0, first)] if held and first else []
        for task in self.tasks[first:]:
            if held and task in same:
                place = held._position[task]
                parts.append(held._pinned.part(place, place + 1))
                continue
            maker = self._maker(task, pinned)
            # A shard that predates the first update is asked with the backbone.
            bare = maker.kind == "frozen"
            parts.append(self._newest.unchanged() if bare else _text_updates(backbone, maker))
        self._pinned = TextUpdates.stack(parts)
        with mixed_precision(enabled=self._mixed):
            self._start = start_of_text(self._backbone, self._newest)
            starts = [held._starts[:, :, :first]] if held and first else []
            if first < len(self.tasks):
                starts.append(start_of_text(self._backbone, self._pinned.part(first, len(self.tasks))))
        self._starts = torch.cat(starts, dim=2)

    def shared(self, mode: str) -> bool:
        return mode == "latest"

    def anchor(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        place = self._position[task]
        update = self._pinned.part(place, place + 1)
        if not update.b.any() and not update.words.any():
            return self._backbone.fingerprint
        tensors = {name: getattr(update, name) for name in ("a", "b", "words", "keys")}
        return _identity([self._backbone.fingerprint, update.scale], tensors)

    def _encode(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        if mode == "latest":
            start = self._start if self._spares(len(ids)) else None
            return encode_texts(self._backbone, ids, self._newest, start)
        chosen = torch.tensor(positions, device=self._backbone.device)
        start = self._starts[:, :, chosen] if self._spares(len(ids) * len(chosen)) else None
        return encode_texts(self._backbone, ids, self._pinned.choose(chosen), start)

    def _encode_rows(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        if mode == "latest":
            return self._encode(ids, (), mode)[0]
        positions = positions.to(self._backbone.device)
        start = self._starts[:, :, positions].transpose(2, 3) if self._spares(len(ids)) else None
        return encode_texts(self._backbone, ids, PerText(self._pinned.choose(positions)), start)[0]

    def _spares(self, texts: int) -> bool:
        """Whether what is kept of their start saves so many texts, each under one candidate, enough."""
        return self._products(texts) >= _SPARED


def _text_updates(backbone: Backbone, release: ReleaseState) -> TextUpdates:
    """The update of a release.

    Raises:
        ReleaseError: the release's tensors are no update of this backbone's text tower.
    """
    try:
        scale = release.config["scale"]
        update = compact(under("text.", release.tensors), backbone.vocabulary, scale).to(backbone.device)
    except (KeyError, ValueError) as error:
        raise ReleaseError(f"the text update of the release cannot be used: {error}") from error
    if update.a.shape[1::3] != (len(backbone.text_blocks), backbone.text_width):
        raise ReleaseError(
            f"the text update of the release is for {update.a.shape[1]} blocks of width {update.a.shape[-1]}, the text "
            f"tower of {backbone.name!r} has {len(backbone.text_blocks)} of width {backbone.text_width}"
        )
    return update


def build_tame(backbone: Backbone, release: ReleaseState) -> Tame:
    """The text adapters of a release, in evaluation mode.

    Raises:
        ReleaseError: the release's tensors do not fit its configuration.
    """
    config: dict[str, Any] = release.config
    tensors = under("tame.", release.tensors)
    try:
        _, _, experts, _, rank = tensors["b"].shape
        tame = Tame(
            backbone.text_width,
            len(backbone.text_blocks),
            experts=experts,
            rank=rank,
            top_k=config.get("top_k", 1),
            scale=config["scale"],
        )
        tame.load_tensors(tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ReleaseError(f"the adapters of the release do not fit its configuration: {error}") from error
    return tame.to(backbone.device).eval()


def _identity(sizes: Sequence[object], tensors: Mapping[str, Tensor]) -> str:
    """Of text adapters: two that are equal encode alike."""
    digest = hashlib.sha256(json.dumps(sizes).encode())
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="encode")


def _numpy(vectors: Tensor) -> Vectors:
    return np.ascontiguousarray(vectors.float().cpu().numpy())
