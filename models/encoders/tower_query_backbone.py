"""Query encoders whose text tower runs in torch or in a compiled engine, and the text side of their backbones.

On a CPU, queries use a packed text tower: the same function as the tower's own blocks, two to four times as fast. For a
query's few tokens, torch packs a frozen matrix again for every product. oneDNN, which torch includes, multiplies by a
matrix that is packed once, also in bfloat16. It generates code for each number of rows, and never frees it: about half
a MiB per matrix shape. Rows (texts × tokens) are therefore padded to a few sizes, eight per power of two.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones import Precision
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import TokenIds, pad_texts
from models.backbones.bert_text_tower import BertBackbone
from models.backbones.query_backbone import QueryBackbone, TextVectorCaches, Vectors
from models.backbones.tower_computation import mixed_precision
from models.backbones.tower_threads import core_count, map_in_threads
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs, TokenizedText
from models.encoders.tower_forward import encode_texts

_TYPICAL_TOKENS = 16  # in a query; the packed layout is optimized for this batch size
MIN_MULTIPLICATIONS = 10**6  # below this, calling oneDNN takes longer than multiplying
_MAX_ROWS = 1024  # in one product; more rows are split
_MIN_ROW_STEP, _ROW_SIZE_BITS = 4, 3  # 48 sizes up to 1024 rows; padding adds at most an eighth above 32 rows
_packed_backbones: WeakKeyDictionary[Backbone, dict[Precision, Backbone]] = WeakKeyDictionary()


def pack_text_tower(backbone: Backbone) -> Backbone:
    """Pack a backbone's text tower in its ``query_precision``, once per backbone.

    The weights of the text tower must not change afterwards. The result shares everything else with the backbone, and
    is the backbone itself if it is not on a CPU with oneDNN kernels for the precision, or if its blocks cannot be
    packed.
    """
    precision = backbone.query_precision
    if not backbone.has_open_blocks:
        return backbone
    if isinstance(backbone, BertBackbone):
        backbone.freeze_text_tower()
        return backbone
    if not (backbone.device.type == "cpu" and _has_kernels(precision)):
        return backbone
    packed = _packed_backbones.setdefault(backbone, {})
    if precision not in packed:
        blocks = [PackedBlock(block, precision) for block in backbone.text_blocks]
        packed[precision] = backbone.with_text_blocks(blocks)
    return packed[precision]


class PackedLinear(nn.Module):
    """Linear layer x ↦ Wx + b with a packed copy of W ``[out, in]`` and b ``[out]``, for inference only, in and out of
    single precision.
    """

    def __init__(self, weight: Tensor, bias: Tensor, precision: Precision) -> None:
        super().__init__()
        self._dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().to(self._dtype), _TYPICAL_TOKENS
        )
        self._bias = bias.detach().to(self._dtype)
        self._unpacked = weight.detach(), bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._unpacked
        if x.numel() * len(bias) < MIN_MULTIPLICATIONS:
            return F.linear(x, weight, bias)
        return _apply_to_padded_rows(self._multiply, x)

    def _multiply(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows.to(self._dtype), self._weight, self._bias, "none", [], ""
        )
        return product.float()


class PackedAttention(nn.Module):
    """The four projections of an ``nn.MultiheadAttention`` with packed matrices."""

    def __init__(self, attention: nn.MultiheadAttention, precision: Precision) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.in_proj = PackedLinear(attention.in_proj_weight, attention.in_proj_bias, precision)
        self.out_proj = PackedLinear(attention.out_proj.weight, attention.out_proj.bias, precision)


class PackedBlock(nn.Module):
    """A ``ResidualAttentionBlock`` with packed matrices and the same members."""

    def __init__(self, block: Any, precision: Precision) -> None:
        super().__init__()
        self.ln_1, self.ls_1, self.ln_2, self.ls_2 = block.ln_1, block.ls_1, block.ln_2, block.ls_2
        self.attn = PackedAttention(block.attn, precision)
        self.mlp = nn.Sequential(
            *(
                PackedLinear(layer.weight, layer.bias, precision) if isinstance(layer, nn.Linear) else layer
                for layer in block.mlp
            )
        )


def _apply_to_padded_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a row-wise function to ``x [..., d]``, calling it with rows padded to ``[size, d]``."""
    count = x.numel() // x.shape[-1]
    size = _padded_count(min(count, _MAX_ROWS))
    if size == count:
        return function(x)
    rows = x.flatten(0, -2)
    if count < _MAX_ROWS:
        padded = rows.new_empty(size, rows.shape[1])  # F.pad fills all rows first
        padded[:count] = rows
        padded[count:] = 0
        applied = function(padded)[:count]
    else:
        applied = torch.cat([_apply_to_padded_rows(function, part) for part in torch.split(rows, _MAX_ROWS)])
    return applied.view(*x.shape[:-1], applied.shape[-1])


def _padded_count(count: int) -> int:
    """Round up to the next size."""
    step = max(_MIN_ROW_STEP, 1 << max((count - 1).bit_length() - 1 - _ROW_SIZE_BITS, 0))
    return -(-count // step) * step


def _has_kernels(precision: Precision) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return precision == "float32" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_BATCH_TEXTS = {"cpu": 64, "cuda": 512}  # texts per forward pass: what fits a CPU's caches, or fills a GPU

# Caches for the towers, which all encoders in the process share; the second key says whether products are bfloat16.
_caches: WeakKeyDictionary[Backbone, dict[bool, TextVectorCaches]] = WeakKeyDictionary()


class TowerQueryBackbone(QueryBackbone):
    """The text side of a backbone, whose text tower must not change afterwards; ``load_towers`` loads both towers if
    the backbone has only its text tower.
    """

    def __init__(self, backbone: Backbone, load_towers: Callable[[], Backbone] | None = None) -> None:
        self.packed = pack_text_tower(backbone)
        # Whether forward passes need mixed_precision; a packed tower applies the query precision itself.
        self.uses_mixed_precision = self.packed is backbone and backbone.query_precision == "bfloat16"
        caches = _caches.setdefault(self.packed, {})
        super().__init__(caches.setdefault(self.uses_mixed_precision, TextVectorCaches()))
        self._backbone, self._load_towers = backbone, load_towers
        self._lock = Lock()
        self.name, self.fingerprint = backbone.name, backbone.fingerprint
        self.dim, self.vocabulary = backbone.dim, backbone.vocabulary
        self.weight_bytes = sum(weight.nbytes for weight in backbone.parameters())
        self.text_background = backbone.text_background

    @property
    def engine(self) -> str:
        return self._backbone.engine

    def towers(self) -> Backbone:
        with self._lock:
            if self._load_towers is not None:
                # From now on, queries use the loaded text tower, so that the separate one is freed.
                self._backbone = self.packed = self._load_towers()
                self.weight_bytes = sum(weight.nbytes for weight in self._backbone.parameters())
                self._load_towers = None
        return self._backbone

    def tokenize(self, texts: Sequence[str]) -> list[TokenIds]:
        ids = self._backbone.tokenize(texts)
        return unpad(ids, self._backbone.end_of_text(ids))

    def _encode_one(self, text: TokenIds) -> Vectors:
        vectors: Vectors = self._encode_batch([text])[0]
        return vectors

    def _encode_each(self, texts: Sequence[TokenIds]) -> Iterable[Vectors]:
        if self.packed.device.type == "cpu":
            # Torch parallelizes the products itself if it may use several threads.
            threads = core_count() if torch.get_num_threads() == 1 else 1
            return map_in_threads(self._encode_one, texts, threads)
        return self._encode_batch(texts)  # on a GPU, a pass for each text would take as long as one for all

    def _encode_batch(self, texts: Sequence[TokenIds]) -> Vectors:
        return self._encode_batches(texts, batches_by_length(texts, self.packed.device))

    def _encode_batches(self, texts: Sequence[TokenIds], batches: Sequence[TokenIds]) -> Vectors:
        """Encode texts to unit vectors ``[n, dim]``; each batch lists positions of texts."""
        parts = []
        with self.inference():
            for rows in batches:
                ids = torch.from_numpy(pad_texts([texts[row] for row in rows], self.packed.padding))
                parts.append(encode_texts(self.packed, ids)[0])
        return read_vectors(parts, batches)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Set up forward passes in the calling thread."""
        with torch.inference_mode(), mixed_precision(enabled=self.uses_mixed_precision):
            yield


def read_vectors(parts: Sequence[Tensor], batches: Sequence[npt.NDArray[np.int64]]) -> Vectors:
    """Collect the vectors ``[rows, dim]`` of one or more encoded batches in row order, ``[n, dim]``.

    All are copied at once, so that the host waits only once for a device.
    """
    copied = torch.cat([part.float() for part in parts]).cpu().numpy()
    vectors = np.empty_like(copied)
    vectors[np.concatenate(batches)] = copied
    return vectors


def batches_by_length(texts: Sequence[TokenIds], device: torch.device) -> list[TokenIds]:
    """Group the positions of texts into batches of similar length, which need little padding."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    size = batch_size(device, len(texts))
    return [order[start : start + size] for start in range(0, len(order), size)]


def batch_size(device: torch.device, texts: int) -> int:
    """Limit how many of the texts pass the tower at once."""
    return _BATCH_TEXTS.get(device.type, max(1, texts))


def unpad(ids: Tensor, end: Tensor) -> list[TokenIds]:
    """Split padded IDs ``[n, L]`` into texts, each up to the position ``[n]`` where it ends."""
    rows = ids.cpu().numpy().astype(np.int64, copy=False)
    return [row[: last + 1].copy() for row, last in zip(rows, end.tolist(), strict=True)]


class AdaptedQueryEncoder(QueryEncoder):
    """Encodes texts with adapters in the text tower, or with a text tower of its own."""

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        tower = TowerQueryBackbone(inputs.backbone.towers())
        self._backbone = tower.packed
        self._uses_mixed_precision = tower.uses_mixed_precision

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        positions = self._positions(tasks, mode)
        ids = self._texts.tokenize(texts)
        encoded = np.empty((len(texts), len(tasks), self._texts.dim), np.float32)
        for rows in batches_by_length(ids, self._backbone.device):
            padded = torch.from_numpy(pad_texts([ids[row] for row in rows]))
            with torch.inference_mode(), mixed_precision(enabled=self._uses_mixed_precision):
                vectors = self.encode_for_tasks(padded, positions, mode)
            encoded[rows] = vectors.transpose(0, 1).float().cpu().numpy()
        return encoded

    def encode_pairs(self, texts: Sequence[TokenizedText], tasks: Sequence[str], mode: str) -> Vectors:
        # All pairs are rows of one batch. Rows share the frozen weights; low-rank updates are gathered per row.
        positions = torch.tensor(self._positions(tasks, mode))
        lengths = np.array([len(text.tokens) for text in texts])
        if not texts:
            return np.empty((0, self._texts.dim), np.float32)

        def encode_rows(rows: npt.NDArray[np.int64]) -> Tensor:
            ids = torch.from_numpy(pad_texts([texts[row].tokens for row in rows]))
            # Both contexts apply only to the thread that enters them.
            with torch.inference_mode(), mixed_precision(enabled=self._uses_mixed_precision):
                device = self._backbone.device
                return self.encode_each(ids.to(device, non_blocking=True), positions[rows], mode)

        backbone = self._backbone
        is_parallel = (
            backbone.device.type != "cpu" or not backbone.has_causal_text or torch.get_num_threads() > 1
        )
        threads = 1 if is_parallel else core_count()
        # Each part has texts of similar length, and each thread about equal work.
        rounds = -(-len(texts) // (threads * batch_size(self._backbone.device, len(texts))))
        order = np.argsort(lengths, kind="stable")
        parts = [part for part in np.array_split(order, threads * rounds) if len(part)]
        return read_vectors(map_in_threads(encode_rows, parts, threads), parts)

    @abstractmethod
    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        """Encode token IDs ``[n, L]`` for tasks at C positions, ``[C, n, dim]``, ``[1, n, dim]`` if all are equal."""

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        """Encode token IDs ``[n, L]``, each for the task at its own position ``[n]``, to vectors ``[n, dim]``.

        This default is for encoders that ignore the task.
        """
        return self.encode_for_tasks(ids, (), mode)[0]
