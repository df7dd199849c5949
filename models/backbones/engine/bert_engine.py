"""BERT as a compiled text tower: from token IDs to unit vectors in the joint space.

Texts of equal length form a batch, so no product is wasted on padding and attention needs no mask. Word embeddings stay
outside the graph: the table is not copied, and a text reads a few of its rows.

Layers multiply numbers that are rounded to 8 bits. A short text reads each weight for a few products only, so reading
float32 weights would take most of the time. Vectors have a cosine of about 0.999 with those of float32. Processors add
in different orders, and a difference in the last bit can change a rounded number, so vectors from two processors also
differ slightly.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from models.backbones.bert_tokenizer import PADDING
from models.backbones.engine.compiled_graph import ENGINE, CompiledGraph, GraphBuilder
from models.backbones.tower_threads import map_in_threads

Array = npt.NDArray[np.float32]

_BATCH_TOKENS = 256  # tokens in a run: their activations fit a core's caches


class BertEngine:
    """A frozen BERT with exact GELU and absolute positions, averaged over tokens and linearly projected.

    Args:
        weights: Weights, named as in transformers' ``BertModel``. The table of word embeddings is not copied.
        heads: Number of attention heads.
        epsilon: Epsilon of the layer normalizations.
        projection: ``[width, dim]``.
        center: Vector ``[width]`` to subtract from the normalized mean over tokens; None to project the mean itself.
    """

    name = ENGINE

    def __init__(
        self,
        weights: Mapping[str, Array],
        heads: int,
        epsilon: float,
        projection: Array,
        center: Array | None,
    ) -> None:
        self._words = weights["embeddings.word_embeddings.weight"]
        token_type = weights["embeddings.token_type_embeddings.weight"][0]
        self._positions = weights["embeddings.position_embeddings.weight"] + token_type
        self._dim = projection.shape[1]
        self._graph = _text_vectors(weights, heads, epsilon, projection, center)

    def __call__(self, ids: npt.NDArray[np.int64], threads: int = 1) -> Array:
        """Encode token IDs ``[n, L]`` with padding at the end to unit vectors ``[n, dim]``."""
        if len(ids) == 1:  # finding the length and grouping would take a tenth of the graph's time
            (text,), length = ids, ids.shape[1]
            while length > 1 and text[length - 1] == PADDING:
                length -= 1
            return self._encode(ids[:, :length])
        lengths = np.max((ids != PADDING) * np.arange(1, ids.shape[1] + 1), axis=1, initial=1)
        order = np.argsort(lengths, kind="stable")
        batches = []
        for length, group in groupby(order, key=lengths.__getitem__):
            rows, size = np.fromiter(group, np.int64), max(1, _BATCH_TOKENS // int(length))
            batches += [(rows[start : start + size], int(length)) for start in range(0, len(rows), size)]

        def encode(batch: tuple[npt.NDArray[np.int64], int]) -> Array:
            rows, length = batch
            return self._encode(ids[rows, :length])

        vectors = np.empty((len(ids), self._dim), np.float32)
        vectors[order] = np.concatenate(map_in_threads(encode, batches, threads) or [vectors])
        return vectors

    def _encode(self, ids: npt.NDArray[np.int64]) -> Array:
        """Encode texts of equal length, ``[n, L]`` without padding."""
        return self._graph(self._words[ids] + self._positions[: ids.shape[1]])


def _text_vectors(
    weights: Mapping[str, Array], heads: int, epsilon: float, projection: Array, center: Array | None
) -> CompiledGraph:
    """Build the graph from embedded tokens ``[n, L, width]`` to unit vectors ``[n, dim]``."""
    width = weights["embeddings.LayerNorm.bias"].shape[0]
    graph = GraphBuilder("embedded", np.float32, ["n", "L", width])

    def norm_constants(layer: str) -> tuple[str, str]:
        return graph.constant(weights[f"{layer}.weight"]), bias(layer)

    def bias(*layers: str) -> str:
        return graph.constant(np.concatenate([weights[f"{layer}.bias"] for layer in layers]))

    def multiply(rows: str, layer: str) -> str:
        return graph.multiply_rounded(rows, weights[f"{layer}.weight"])

    def add_and_normalize(states: str, layer: str, values: str, norm: str) -> str:
        options: dict[str, Any] = {"epsilon": epsilon}
        product = multiply(values, layer)
        return graph.apply_fused(
            "SkipLayerNormalization", product, states, *norm_constants(norm), bias(layer), **options
        )

    states = graph.apply(
        "LayerNormalization", graph.input, *norm_constants("embeddings.LayerNorm"), axis=-1, epsilon=epsilon
    )
    for index in range(len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})):
        layer = f"encoder.layer.{index}"
        projections = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        attended = graph.apply_fused(
            "MultiHeadAttention",
            *(multiply(states, name) for name in projections),
            bias(*projections),
            num_heads=heads,
        )
        output = f"{layer}.attention.output"
        states = add_and_normalize(states, f"{output}.dense", attended, f"{output}.LayerNorm")
        inner = f"{layer}.intermediate.dense"
        hidden = graph.apply_fused("BiasGelu", multiply(states, inner), bias(inner))
        states = add_and_normalize(states, f"{layer}.output.dense", hidden, f"{layer}.output.LayerNorm")
    vectors = graph.apply("ReduceMean", states, graph.constant(np.array([1])), keepdims=0)
    if center is not None:
        vectors = graph.apply("Sub", graph.apply("LpNormalization", vectors), graph.constant(center))
    vectors = graph.apply("MatMul", vectors, graph.constant(projection))
    return graph.compile(graph.apply("LpNormalization", vectors), ["n", projection.shape[1]])
