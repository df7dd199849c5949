"""Encoders of MoE-Adapters: mixtures of experts in both towers, and a selector that infers a query's task.

MoE-Adapters have mixtures of experts in parallel to every block's MLP (Yu et al. 2024, "Boosting continual learning of
vision-language models via mixture-of-experts adapters").

A block's experts are small bottlenecks that all tasks share. Each task has its own router, which picks k experts for
every input (y = Σ w_i E_i(x), w = softmax(top-k(R(c))) with c the first token); their weighted sum is added to the
output of the block's MLP. Experts read the block's residual stream, as in the published code. At the start E = 0, so
the towers are unchanged.

The selector (DDAS) infers an input's task: every task has an autoencoder, and the task with the lowest reconstruction
error wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.tower_computation import forward_precision
from models.encoders.encoder_registry import EncoderFamily
from models.encoders.family_video_encoder import FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoderInputs
from models.encoders.tower_forward import encode_texts
from models.encoders.tower_query_backbone import AdaptedQueryEncoder
from models.errors import ReleaseError
from models.releases.release_state import Array, ReleaseState
from models.releases.release_tensors import tensors_with_prefix

NO_ROUTER = -1  # router number of a task without experts
_NOISE_FLOOR = 1e-2  # as in the published code


class Expert(nn.Module):
    """Bottleneck scale · (W_up dropout(relu(W_down x + b)) + b'); zero at the start."""

    def __init__(self, width: int, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        for parameter in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        low = F.dropout(F.relu(self.down(tokens)), self.dropout, self.training)
        return torch.mul(self.up(low), self.scale)


class ExpertLayer(nn.Module):
    """The experts in one block, and every task's router.

    Args:
        width: Token width.
        experts: Number E of experts.
        rank: Width of each bottleneck.
        top_k: Number k of experts per input.
        scale: Scale of an expert's output.
        dropout: Dropout inside the bottleneck, in training only.

    Attributes:
        used: How often training on the current task has chosen each expert, ``[E]``.
        frozen: Whether an earlier task relies on each expert, ``[E]``.
    """

    used: Tensor
    frozen: Tensor

    def __init__(
        self, width: int, *, experts: int, rank: int, top_k: int, scale: float, dropout: float
    ) -> None:
        super().__init__()
        self.width, self.top_k = width, min(top_k, experts)
        self.experts = nn.ModuleList(Expert(width, rank, scale, dropout) for _ in range(experts))
        self.routers = nn.ParameterList()
        self.noises = nn.ParameterList()
        self.register_buffer("used", torch.zeros(experts, dtype=torch.int64))
        self.register_buffer("frozen", torch.zeros(experts, dtype=torch.bool))

    def add_router(self) -> None:
        """Add a router for one more task, with equal weights for all experts."""
        for parameters in (self.routers, self.noises):
            empty = torch.zeros(self.width, len(self.experts), device=self.used.device)
            parameters.append(nn.Parameter(empty, requires_grad=False))

    def unfreeze_newest(self) -> None:
        """Make the newest router trainable, and the experts that no earlier task relies on."""
        for expert, frozen in zip(self.experts, self.frozen.tolist(), strict=True):
            expert.requires_grad_(not frozen)
        self.routers[-1].requires_grad_(True)
        self.noises[-1].requires_grad_(True)

    def freeze_most_used(self) -> None:
        """Freeze the k experts that the current task has chosen most often (activate-freeze)."""
        if self.used.any():
            self.frozen[self.used.topk(self.top_k).indices] = True
        self.used.zero_()

    def gates(self, first: Tensor, tasks: Tensor) -> Tensor:
        """Compute the weights of the experts, ``[n, E]``: k positive ones that sum to one; all zero for ``NO_ROUTER``.

        Args:
            first: First token of each input, ``[n, width]``.
            tasks: Router number of each input, or ``NO_ROUTER``, ``[n]``.
        """
        clamped = tasks.clamp(min=0)  # inputs without a router use any; their gates are set to zero below
        numbers = sorted(set(clamped.tolist()))
        which = torch.searchsorted(torch.tensor(numbers, device=tasks.device), clamped)
        router = torch.stack([self.routers[number] for number in numbers])
        logits = torch.einsum("nd,nde->ne", first, router[which]).float()
        if self.training:
            noise = torch.stack([self.noises[number] for number in numbers])
            deviation = F.softplus(torch.einsum("nd,nde->ne", first, noise[which]).float()) + _NOISE_FLOOR
            logits = logits + torch.randn_like(logits) * deviation
        kept, experts = logits.topk(self.top_k, dim=-1)
        gates = torch.zeros_like(logits).scatter(-1, experts, kept.softmax(dim=-1))
        return gates * (tasks != NO_ROUTER).unsqueeze(-1)

    def forward(self, hidden: Tensor, tasks: Tensor) -> Tensor:
        """Compute y = Σ w_i E_i(x), ``[n, L, width]``.

        Args:
            hidden: Residual stream, ``[n, L, width]``.
            tasks: Router number of each input, or ``NO_ROUTER``, ``[n]``.
        """
        mixed = torch.zeros_like(hidden)
        if not len(self.routers):
            return mixed
        gates = self.gates(hidden[:, 0], tasks).to(hidden.dtype)
        if self.training:
            self.used += (gates > 0).sum(dim=0)
        for index, expert in enumerate(self.experts):
            rows = gates[:, index].nonzero().flatten()
            if len(rows):
                share = gates[rows, index, None, None] * expert(hidden[rows])
                mixed = mixed.index_add(0, rows, share.to(mixed.dtype))
        return mixed


class ExpertTower(nn.Module):
    """Experts for all blocks in a tower.

    Args:
        width: The tower's token width.
        experts, rank, top_k, scale, dropout: See :class:`ExpertLayer`.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        *,
        experts: int = 22,
        rank: int = 64,
        top_k: int = 2,
        scale: float = 0.1,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ExpertLayer(width, experts=experts, rank=rank, top_k=top_k, scale=scale, dropout=dropout)
            for _ in range(depth)
        )

    @property
    def blocks(self) -> list[ExpertLayer]:
        """Expert layers of the blocks, in order."""
        return [layer for layer in self.layers if isinstance(layer, ExpertLayer)]

    @property
    def tasks(self) -> int:
        """Number of tasks with a router."""
        return len(self.blocks[0].routers)

    def add_router(self) -> None:
        """Add a router for one more task to every block."""
        for layer in self.blocks:
            layer.add_router()

    def unfreeze_newest(self) -> None:
        """Make the weights trainable that the newest task may change."""
        for layer in self.blocks:
            layer.unfreeze_newest()

    def finish_task(self) -> None:
        """Freeze all weights, and mark the most used experts as frozen for later tasks."""
        self.requires_grad_(False)
        for layer in self.blocks:
            layer.freeze_most_used()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a ``state_dict`` with any number of routers."""
        routers = sum(name.startswith("layers.0.routers.") for name in tensors)
        for _ in range(routers - self.tasks):
            self.add_router()
        self.load_state_dict(dict(tensors))


class TaskSelector(nn.Module):
    """DDAS: one autoencoder per task, on the frozen backbone's features.

    Args:
        dim: Dimension of the features.
        width: Dimension of the autoencoder's code.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.dim, self.width = dim, width
        self.encoders = nn.ModuleList()

    def __len__(self) -> int:
        """Count the tasks."""
        return len(self.encoders)

    def add_task(self) -> None:
        """Add an autoencoder for one more task."""
        code = nn.Linear(self.dim, self.width), nn.ReLU()
        self.encoders.append(nn.Sequential(*code, nn.Linear(self.width, self.dim), nn.Sigmoid()))

    def reconstruction_error(self, features: Tensor, task: int) -> Tensor:
        """Compute a task's mean squared reconstruction error ``[n]`` on the sigmoid of unit vectors ``[n, dim]``."""
        target = (features * math.sqrt(self.dim)).sigmoid()  # scaled to about unit variance
        squares: Tensor = (self.encoders[task](target) - target) ** 2
        return squares.mean(dim=-1)

    def select(self, features: Tensor) -> Tensor:
        """Select the task with the lowest reconstruction error for each feature vector.

        Args:
            features: Unit vectors, ``[n, dim]``.

        Returns:
            ``[n]``; ``NO_ROUTER`` if no task has an autoencoder.
        """
        if not len(self):
            return torch.full((len(features),), NO_ROUTER, device=features.device)
        return torch.stack([self.reconstruction_error(features, task) for task in range(len(self))]).argmin(
            dim=0
        )

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a ``state_dict`` with any number of autoencoders."""
        tasks = sum(name.endswith(".0.weight") for name in tensors)
        for _ in range(tasks - len(self)):
            self.add_task()
        self.load_state_dict(dict(tensors))


def encode_frames_with_experts(backbone: Backbone, frames: Tensor, tower: ExpertTower, task: int) -> Tensor:
    """Compute unit video vectors ``[n, dim]`` with an image tower's experts; the class token routes each frame.

    Args:
        backbone: Backbone with open blocks.
        frames: ``uint8 [n, M, H, W, 3]``.
        task: Router number for all frames, or ``NO_ROUTER``.
    """
    with forward_precision(backbone.device):
        tokens = backbone.embed_frames(frames)
        shape = tokens.shape
        hidden = tokens.flatten(0, 1)
        tasks = torch.full((len(hidden),), task, device=hidden.device)
        for block, experts in zip(backbone.visual_blocks, tower.blocks, strict=True):
            hidden = hidden + block.ls_1(block.attention(block.ln_1(hidden)))
            hidden = hidden + block.ls_2(block.mlp(block.ln_2(hidden))) + experts(hidden, tasks)
    return backbone.pool_frames(hidden.view(shape).float())[0]


def encode_texts_with_experts(
    backbone: Backbone, ids: Tensor, tower: ExpertTower, tasks: Tensor | Sequence[int]
) -> Tensor:
    """Compute unit text vectors ``[n, dim]`` with a text tower's experts.

    The first token is the same for all texts, so a text's experts depend only on its task.

    Args:
        backbone: Backbone with open blocks.
        ids: Token IDs ``[n, L]``.
        tasks: Router number of each text, or ``NO_ROUTER``, ``[n]``.
    """
    ids = ids.to(backbone.device)
    tasks = torch.as_tensor(tasks, device=backbone.device)
    mask = backbone.text.attn_mask[: ids.shape[1], : ids.shape[1]]
    with forward_precision(backbone.device):
        hidden = backbone.embed_tokens(ids)
        for block, experts in zip(backbone.text_blocks, tower.blocks, strict=True):
            hidden = hidden + block.ls_1(block.attention(block.ln_1(hidden), attn_mask=mask))
            hidden = hidden + block.ls_2(block.mlp(block.ln_2(hidden))) + experts(hidden, tasks)
    return backbone.pool_text(hidden.float(), backbone.end_of_text(ids))


_TEXT, _SELECTOR, _VISUAL, _TASKS = "moe.text.", "moe.selector.", "moe.visual.", "moe.tasks"
_TOWER_SETTINGS = ("experts", "rank", "top_k", "scale")


class ExpertsQueryEncoder(AdaptedQueryEncoder):
    """Encodes once for all tasks with the router that the selector infers; without a selector, with each task's own."""

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone.towers(), inputs.release
        # Experts run in parallel to whole blocks with their own attention, so the tower cannot be packed.
        self._backbone = backbone
        self._uses_mixed_precision = backbone.query_precision == "bfloat16"
        settings = {key: release.config[key] for key in _TOWER_SETTINGS}
        self._tower = ExpertTower(backbone.text_width, len(backbone.text_blocks), **settings)
        self._selector = TaskSelector(backbone.dim, release.config["selector_width"])
        try:
            self._tower.load_tensors(tensors_with_prefix(_TEXT, release.tensors))
            self._selector.load_tensors(tensors_with_prefix(_SELECTOR, release.tensors))
            self._routers = torch.from_numpy(release.tensors[_TASKS])
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
    """The image tower with the experts that the newest task's router picks."""

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
    def fingerprint_tensors(release: ReleaseState) -> dict[str, Array]:
        """Select the tensors that the video encoder computes with: the experts and the newest task's router."""
        router = _newest_router(release)
        if router == NO_ROUTER:
            return {}
        return {
            name: array
            for name, array in release.tensors.items()
            if name.startswith(_VISUAL) and (".experts." in name or name.endswith(f".routers.{router}"))
        }


def _newest_router(release: ReleaseState) -> int:
    """Find the newest task's router number, or ``NO_ROUTER``."""
    routers = release.tensors[_TASKS].tolist()
    return int(routers[-1]) if routers else NO_ROUTER


EXPERTS_FAMILY = EncoderFamily(
    kind="moe",
    query_encoder=ExpertsQueryEncoder,
    video_encoder=ExpertsVideoEncoder,
    query_prefixes=(_TEXT, _SELECTOR, _TASKS),
    video_prefixes=(_VISUAL, _TASKS),
)
