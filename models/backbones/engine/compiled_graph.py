"""ONNX graphs, compiled by ONNX Runtime.

A graph runs in the calling thread. :func:`~models.backbones.tower_threads.map_in_threads` divides a batch among threads
instead, which needs no synchronization within an operator and no thread that spins while it waits for work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ENGINE = f"ONNX Runtime {onnxruntime.__version__}"
_OPERATORS, _MICROSOFT_OPERATORS = 20, 1  # versions of the operator sets
_FORMAT = 10  # version of the file format that has these operators
_OUTPUT = "output"
_LARGEST_INLINE = 1024  # bytes of a constant that is stored inside the model
_BLOCK, _LARGEST_CODE, _CODE_OF_ZERO = 64, 127, 128  # of numbers that are rounded to 8 bits


class GraphBuilder:
    """A graph with one input and one output, built operator by operator.

    Args:
        name: Name of the input.
        dtype: Type of the input.
        shape: Shape of the input; a name instead of a size means that it varies between runs.
    """

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

    def apply(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Apply an ONNX operator to named tensors and return the name of its result."""
        return self._apply("", operator, inputs, attributes)

    def apply_fused(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Apply one of ONNX Runtime's own operators."""
        return self._apply("com.microsoft", operator, inputs, attributes)

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

    def _apply(self, domain: str, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
        name = f"result_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], domain=domain, **attributes))
        return name

    def compile(self, result: str, shape: Sequence[int | str]) -> CompiledGraph:
        """Compile the graph that computes a ``float32`` result of the given shape."""
        nodes = [*self._nodes, helper.make_node("Identity", [result], [_OUTPUT])]
        output = helper.make_tensor_value_info(_OUTPUT, _element_type(np.float32), shape)
        graph = helper.make_graph(nodes, "tower", [self._input], [output], self._constants)
        versions = {"": _OPERATORS, "com.microsoft": _MICROSOFT_OPERATORS}
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in versions.items()],
            ir_version=_FORMAT,
        )
        return CompiledGraph(model.SerializeToString(), self.input, self._weights)


class CompiledGraph:
    """A function of one array, safe to call from several threads at once.

    Args:
        model: Serialized ONNX model.
        name: Name of its input.
        weights: Constants that the model refers to by name, ``OrtValue`` each.
    """

    def __init__(self, model: bytes, name: str, weights: Mapping[str, Any]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        options.add_external_initializers(list(weights), list(weights.values()))
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._input = name

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Run the graph."""
        result: npt.NDArray[np.float32] = self._session.run([_OUTPUT], {self._input: values})[0]
        return result


def _element_type(dtype: npt.DTypeLike) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
