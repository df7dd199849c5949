"""Encoders of progressive neural networks: every shard is encoded and queried by its task's column.

Progressive neural networks have one column per task, with lateral connections from the columns of earlier tasks (Rusu
et al. 2016, "Progressive neural networks").

A column is a whole tower with its own weights. Block i in column k also reads the outputs h of block i − 1 in all
earlier columns, which never change (equation 2):

    h_i(k) = B_i(k)(h_{i−1}(k)) + U_i relu(V_i [α_1 h_{i−1}(1), …, α_{k−1} h_{i−1}(k−1)])

with a scalar α_j per earlier column, V_i from their concatenation to the width of one column, and U_i from there to the
width. At the start U = 0, so a new column equals the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.backbones.open_clip_backbone import require_clip_blocks
from models.backbones.tower_computation import forward_precision
from models.encoders.encoder_registry import EncoderFamily
from models.encoders.family_video_encoder import FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoderInputs, adapter_identity
from models.encoders.tower_query_backbone import AdaptedQueryEncoder
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix, to_arrays

NO_COLUMN = -1  # column of a task that predates the first column: the backbone
_MAXIMUM_INITIAL_FACTOR = 0.1  # for α; the paper states random small values
_VISUAL, _LATERAL = "visual.", "lateral."

RunBlock = Callable[[int, int, Tensor], Tensor]  # column and layer, on the output of the layer below


class LateralConnection(nn.Module):
    """Non-linear adapter from all earlier columns to one block: U relu(V [α_j h_j]).

    Args:
        width: Token width.
        columns: Number of earlier columns, at least 1.
    """

    def __init__(self, width: int, columns: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.rand(columns) * _MAXIMUM_INITIAL_FACTOR)
        self.down = nn.Linear(width * columns, width, bias=False)
        self.up = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Compute ``[..., width]`` from the states of every earlier column, ``[..., width]`` each."""
        scaled = [factor * state for factor, state in zip(self.alpha, states, strict=True)]
        added: Tensor = self.up(self.down(torch.cat(scaled, dim=-1)).relu())
        return added


class ProgressiveTower:
    """All columns of the image tower or of the text tower.

    Args:
        backbone: Backbone with open blocks; each column starts as its tower.
        is_visual: Whether the columns are image towers.

    Attributes:
        columns: Backbones, each of which has one tower as a column; all share the other tower.
        laterals: Lateral connections into each block of each column; none for the first column.
    """

    def __init__(self, backbone: Backbone, *, is_visual: bool) -> None:
        require_clip_blocks(backbone)
        self.backbone, self.is_visual = backbone, is_visual
        self.width = backbone.visual_width if is_visual else backbone.text_width
        self.depth = len(backbone.visual_blocks if is_visual else backbone.text_blocks)
        self.columns: list[Backbone] = []
        self.laterals: list[nn.ModuleList] = []

    def __len__(self) -> int:
        """Count the columns."""
        return len(self.columns)

    def columns_below(self, column: int) -> tuple[list[Backbone], int]:
        """Get all columns up to one, and its place among them; for ``NO_COLUMN``, the backbone."""
        return ([self.backbone], 0) if column == NO_COLUMN else (self.columns[: column + 1], column)

    def add_column(self) -> None:
        """Add a trainable column with random lateral connections, and freeze the others."""
        self.freeze()
        clone = self.backbone.clone_image_tower if self.is_visual else self.backbone.clone_text_tower
        earlier = len(self.columns)
        connections = (LateralConnection(self.width, earlier) for _ in range(self.depth if earlier else 0))
        self.columns.append(clone())
        self.laterals.append(nn.ModuleList(connections).to(self.backbone.device))
        for parameter in self.newest_parameters():
            parameter.requires_grad_(True)

    def freeze(self) -> None:
        """Freeze all columns."""
        if self.columns:
            for parameter in self.newest_parameters():
                parameter.requires_grad_(False)

    def newest_parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters of the newest column and its lateral connections."""
        for name, parameter in self.columns[-1].clip.named_parameters():
            if name.startswith(_VISUAL) == self.is_visual and name != "logit_scale":
                yield parameter
        yield from self.laterals[-1].parameters()

    def tensors(self) -> dict[str, Tensor]:
        """Collect the weights of all columns as ``<column>.<name>``."""
        named: dict[str, Tensor] = {}
        for number, (column, laterals) in enumerate(zip(self.columns, self.laterals, strict=True)):
            for name, tensor in column.clip.state_dict().items():
                if name.startswith(_VISUAL) == self.is_visual:
                    named[f"{number}.{name}"] = tensor
            named |= {f"{number}.{_LATERAL}{name}": t for name, t in laterals.state_dict().items()}
        return named

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what :meth:`tensors` returned, with any number of columns.

        Raises:
            ReleaseError: The names or shapes are not those of this architecture.
        """
        count = len({name.partition(".")[0] for name in tensors})
        while len(self) < count:
            self.add_column()
        own = self.tensors()
        if own.keys() != tensors.keys() or any(own[name].shape != t.shape for name, t in tensors.items()):
            raise ReleaseError(f"the {count} columns do not fit backbone {self.backbone.name!r}")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def encode_frames_with_column(tower: ProgressiveTower, frames: Tensor, column: int) -> Tensor:
    """Compute unit video vectors ``[n, dim]`` with one column.

    Args:
        tower: Columns of the image tower.
        frames: ``uint8 [n, M, H, W, 3]``.
        column: Number of the column, or ``NO_COLUMN``.
    """
    columns, newest = tower.columns_below(column)
    blocks = [backbone.visual_blocks for backbone in columns]
    with forward_precision(tower.backbone.device):
        tokens = [backbone.embed_frames(frames) for backbone in columns]
        shape = tokens[0].shape
        states = [state.flatten(0, 1) for state in tokens]
        hidden = _run_blocks(tower, states, lambda c, layer, x: blocks[c][layer](x), [newest])
    return columns[newest].pool_frames(hidden[newest].view(shape).float())[0]


def encode_texts_with_columns(tower: ProgressiveTower, ids: Tensor, columns: Sequence[int]) -> Tensor:
    """Compute unit text vectors ``[C, n, dim]`` with several columns, in one pass through all columns below.

    Args:
        ids: Token IDs ``[n, L]``.
        columns: Numbers of the C columns, or ``NO_COLUMN``.
    """
    ids = ids.to(tower.backbone.device)
    wanted = sorted({*columns} - {NO_COLUMN})
    vectors: dict[int, Tensor] = {}
    if NO_COLUMN in columns:
        vectors[NO_COLUMN] = _encode_texts(tower, ids, NO_COLUMN, [0])[0]
    if wanted:
        vectors |= _encode_texts(tower, ids, wanted[-1], wanted)
    return torch.stack([vectors[column] for column in columns])


def _encode_texts(
    tower: ProgressiveTower, ids: Tensor, last: int, wanted: Sequence[int]
) -> dict[int, Tensor]:
    """Compute unit text vectors ``[n, dim]`` for the wanted columns up to the last."""
    columns, _ = tower.columns_below(last)
    blocks = [backbone.text_blocks for backbone in columns]
    mask = tower.backbone.text.attn_mask[: ids.shape[1], : ids.shape[1]]
    with forward_precision(tower.backbone.device):
        states = [backbone.embed_tokens(ids) for backbone in columns]
        hidden = _run_blocks(tower, states, lambda c, layer, x: blocks[c][layer](x, attn_mask=mask), wanted)
    end = tower.backbone.end_of_text(ids)
    return {column: columns[column].pool_text(hidden[column].float(), end) for column in wanted}


def _run_blocks(
    tower: ProgressiveTower, states: Sequence[Tensor], run_block: RunBlock, wanted: Sequence[int]
) -> dict[int, Tensor]:
    """Run the columns, and return the wanted ones' states after the last block, by column.

    Args:
        states: Inputs of each column's first block up to the last wanted column, ``[n, L, width]`` each.
        run_block: Runs a block, given column and layer.
        wanted: Column numbers.
    """
    hidden = dict(enumerate(states))
    for layer in range(tower.depth):
        needed = wanted if layer == tower.depth - 1 else range(len(states))
        outputs: dict[int, Tensor] = {}
        for column in needed:
            outputs[column] = run_block(column, layer, hidden[column])
            if column:
                earlier = [hidden[below] for below in range(column)]
                outputs[column] = outputs[column] + tower.laterals[column][layer](earlier)
        hidden = outputs
    return hidden


TEXT_PREFIX = "pnn.text."  # starts the names of text columns in a release
VISUAL_PREFIX = "pnn.visual."
TASK_COLUMNS = "pnn.tasks"  # name of the tensor with each task's column


class ProgressiveQueryEncoder(AdaptedQueryEncoder):
    """Encodes with each task's column, or with the newest column for all tasks.

    Columns never change, so the newest release has the text columns of every shard's release.
    """

    modes = ("latest", "pinned")

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone.towers(), inputs.release
        # Lateral connections run between whole blocks with their own attention, so the tower cannot be packed.
        self._uses_mixed_precision = backbone.query_precision == "bfloat16"
        self._tower = ProgressiveTower(backbone, is_visual=False)
        self._tower.load_tensors(tensors_with_prefix(TEXT_PREFIX, release.tensors))
        self._tower.freeze()
        if TASK_COLUMNS not in release.tensors or len(release.tensors[TASK_COLUMNS]) != len(self.tasks):
            raise ReleaseError(f"the release does not have one number of a column per task ({TASK_COLUMNS})")
        self._columns: list[int] = release.tensors[TASK_COLUMNS].tolist()

    @property
    def pinned_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tower.tensors().values())

    def is_task_independent(self, mode: str) -> bool:
        return mode == "latest"

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        column = self._columns[self._position[task]]
        if column == NO_COLUMN:
            return self._backbone.fingerprint
        tensors = self._tower.tensors().items()
        used = {name: tensor for name, tensor in tensors if int(name.partition(".")[0]) <= column}
        return adapter_identity([self._backbone.fingerprint, column], to_arrays(used))

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        columns = [self._columns[-1]] if mode == "latest" else [self._columns[p] for p in positions]
        return encode_texts_with_columns(self._tower, ids, columns)

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        if mode == "latest":
            return self.encode_for_tasks(ids, (), mode)[0]
        requested: list[int] = positions.tolist()
        distinct = sorted(set(requested))
        vectors = self.encode_for_tasks(ids, distinct, mode)
        return torch.stack([vectors[distinct.index(p), row] for row, p in enumerate(requested)])


class ProgressiveVideoEncoder(FamilyVideoEncoder):
    """The release's newest image column."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        # Tensors made in inference mode could not be overwritten outside it.
        with torch.inference_mode(False):
            tower = ProgressiveTower(self._backbone, is_visual=True)
            tower.load_tensors(tensors_with_prefix(VISUAL_PREFIX, release.tensors))
            tower.freeze()
        newest = len(tower) - 1 if len(tower) else NO_COLUMN
        return lambda frames: encode_frames_with_column(tower, frames, newest)


PROGRESSIVE_FAMILY = EncoderFamily(
    kind="progressive",
    query_encoder=ProgressiveQueryEncoder,
    video_encoder=ProgressiveVideoEncoder,
    query_prefixes=(TEXT_PREFIX, TASK_COLUMNS),
    video_prefixes=(VISUAL_PREFIX,),
)
