"""Frozen towers as ONNX graphs, compiled by ONNX Runtime for the CPU. Nothing here imports torch or transformers.

A graph runs in the calling thread. Instead, :func:`~models.backbones.tower_threads.map_in_threads` divides a batch
among threads, which needs no synchronization within an operator.

BERT: texts of equal length form a batch, so attention needs no mask. Layers multiply numbers that are rounded to 8
bits: a short text reads each weight for a few products only, so reading float32 weights would take most of the time.
Vectors have a cosine of about 0.999 with those of float32, and differ slightly between processors.

EfficientNet-Lite: strides, padding and activations follow Tan and Le, EfficientNet, ICML 2019, and the authors' Lite
variant, which replaces SiLU by ReLU6 and has no squeeze-and-excitation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from models.backbones.bert_tokenizer import PADDING
from models.backbones.tower_threads import map_in_threads

ENGINE = f"ONNX Runtime {onnxruntime.__version__}"
_OPERATORS, _MICROSOFT_OPERATORS = 20, 1  # versions of the operator sets
_FORMAT = 10  # version of the file format that has these operators
_OUTPUT = "output"
_LARGEST_INLINE = 1024  # bytes of a constant that is stored inside the model
_BLOCK, _LARGEST_CODE, _CODE_OF_ZERO = 64, 127, 128  # of numbers that are rounded to 8 bits

Array = npt.NDArray[np.float32]
CompiledGraph = Callable[[npt.NDArray[Any]], Array]


class GraphBuilder:
    """A graph with one input and one output, built operator by operator; named sizes of the input vary between runs."""

    def __init__(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> None:
        self.input = name
        self._input = helper.make_tensor_value_info(name, _element_type(dtype), shape)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._weights: dict[str, Any] = {}

    def constant(self, values: npt.ArrayLike) -> str:
        """Add a constant tensor and return its name."""
        name, array = f"constant_{len(self._constants)}", np.ascontiguousarray(values)
        tensor = numpy_helper.from_array(array[:0] if array.nbytes > _LARGEST_INLINE else array, name)
        if array.nbytes > _LARGEST_INLINE:
            # The runtime reads the array itself, so weights are not copied into the model and out of it.
            tensor.dims[:] = array.shape
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=name)
            self._weights[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        self._constants.append(tensor)
        return name

    def apply(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Apply an ONNX operator to named tensors and return the name of its result."""
        name = f"result_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], domain=domain, **attributes))
        return name

    def apply_fused(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Apply one of ONNX Runtime's own operators."""
        return self.apply(operator, *inputs, domain="com.microsoft", **attributes)

    def multiply_rounded(self, rows: str, weight: npt.NDArray[np.float32]) -> str:
        """Multiply rows ``[..., in]`` by ``weight [out, in]``, both rounded to 8 bits in blocks of 64 numbers.

        A block is its largest absolute value / 127 times integers. Sums within a block are exact.
        """
        outputs, inputs = weight.shape
        blocks = np.pad(weight, ((0, 0), (0, -inputs % _BLOCK))).reshape(outputs, -1, _BLOCK)
        scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(_LARGEST_CODE)
        codes = np.round(blocks / np.where(scales > 0, scales, 1)) + _CODE_OF_ZERO
        return self.apply_fused(
            "MatMulNBits",
            rows,
            self.constant(codes.astype(np.uint8)),
            self.constant(scales.ravel()),
            K=inputs,
            N=outputs,
            bits=8,
            block_size=_BLOCK,
            accuracy_level=4,  # the rows are rounded, too
        )

    def compile(self, result: str, shape: Sequence[int | str]) -> CompiledGraph:
        """Compile the graph of a ``float32`` result of the given shape, to a function that threads may share."""
        nodes = [*self._nodes, helper.make_node("Identity", [result], [_OUTPUT])]
        output = helper.make_tensor_value_info(_OUTPUT, _element_type(np.float32), shape)
        graph = helper.make_graph(nodes, "tower", [self._input], [output], self._constants)
        versions = {"": _OPERATORS, "com.microsoft": _MICROSOFT_OPERATORS}
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in versions.items()],
            ir_version=_FORMAT,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        options.add_external_initializers(list(self._weights), list(self._weights.values()))
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers)
        name = self.input
        return lambda values: session.run([_OUTPUT], {name: values})[0]


def _element_type(dtype: npt.DTypeLike) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


_BATCH_TOKENS = 256  # tokens in a run: their activations fit a core's caches


class BertEngine:
    """A frozen BERT with exact GELU and absolute positions, averaged over tokens and linearly projected.

    Args:
        weights: Weights, named as in transformers' ``BertModel``. The table of word embeddings is not copied.
        projection: ``[width, dim]``.
        center: Vector ``[width]`` to subtract from the normalized mean over tokens; None to project the mean itself.
    """

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


_STAGE_STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the first block in each stage
_MEAN, _STD = 127, 128  # for normalization, in the 0..255 scale of the frames


class EfficientNetEngine:
    """The convolutions of an EfficientNet-Lite with folded weights (:mod:`models.backbones.small.small_backbone`).
    Square frames of ``size`` pixels pass one by one: more activations would not fit the caches.
    """

    def __init__(self, weights: Mapping[str, Array], size: int) -> None:
        self._graph = _feature_maps(weights, size)

    def __call__(self, frames: npt.NDArray[np.uint8], threads: int = 1) -> Array:
        """Compute feature maps ``[n, 1280, ⌈size / 32⌉, ⌈size / 32⌉]`` of frames ``uint8 [n, size, size, 3]``."""
        return np.concatenate(map_in_threads(self._graph, np.split(frames, len(frames)), threads))


def _feature_maps(weights: Mapping[str, Array], size: int) -> CompiledGraph:
    graph = GraphBuilder("frames", np.uint8, [1, size, size, 3])
    bounds = graph.constant(np.float32(0)), graph.constant(np.float32(6))

    def convolve(values: str, layer: str, stride: int = 1, *, is_activated: bool = True) -> str:
        kernel = weights[f"{layer}.weight"]
        values = graph.apply(
            "Conv",
            values,
            graph.constant(kernel),
            graph.constant(weights[f"{layer}.bias"]),
            strides=[stride, stride],
            auto_pad="SAME_UPPER",  # TensorFlow's: the output has ⌈size / stride⌉ pixels, and an odd pixel comes last
            group=len(kernel) if layer.endswith("conv_dw") else 1,
        )
        return graph.apply("Clip", values, *bounds) if is_activated else values

    pixels = graph.apply("Cast", graph.input, to=1)  # float32
    pixels = graph.apply("Sub", pixels, graph.constant(np.float32(_MEAN)))
    pixels = graph.apply("Mul", pixels, graph.constant(np.float32(1 / _STD)))
    values = convolve(graph.apply("Transpose", pixels, perm=[0, 3, 1, 2]), "conv_stem", stride=2)
    for block in sorted({name.rsplit(".", 2)[0] for name in weights if name.startswith("blocks.")}):
        stage, index = (int(part) for part in block.split(".")[1:])
        stride = 1 if index else _STAGE_STRIDES[stage]
        if f"{block}.conv_pwl.weight" in weights:
            hidden = convolve(values, f"{block}.conv_pw")
            hidden = convolve(hidden, f"{block}.conv_dw", stride)
            hidden = convolve(hidden, f"{block}.conv_pwl", is_activated=False)
        else:  # the first stage has no expansion
            hidden = convolve(values, f"{block}.conv_dw", stride)
            hidden = convolve(hidden, f"{block}.conv_pw", is_activated=False)
        values = graph.apply("Add", hidden, values) if index else hidden
    return graph.compile(convolve(values, "conv_head"), [1, "channels", -(-size // 32), -(-size // 32)])
