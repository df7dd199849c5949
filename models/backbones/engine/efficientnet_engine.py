"""EfficientNet-Lite0 as a compiled image tower: from frames to feature maps.

Strides, padding and activations follow Tan and Le, EfficientNet, ICML 2019, and the authors' Lite variant, which
replaces SiLU by ReLU6 and has no squeeze-and-excitation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from models.backbones.engine.compiled_graph import ENGINE, CompiledGraph, GraphBuilder
from models.backbones.tower_threads import map_in_threads

Array = npt.NDArray[np.float32]

_STAGE_STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the first block in each stage
_MEAN, _STD = 127, 128  # for normalization, in the 0..255 scale of the frames


class EfficientNetEngine:
    """The convolutions of EfficientNet-Lite0. Frames pass one by one: more activations would not fit the caches.

    Args:
        weights: Folded weights, see :mod:`models.backbones.small.image_tower`.
        size: Side of the square frames, pixels; a multiple of 32.
    """

    name = ENGINE

    def __init__(self, weights: Mapping[str, Array], size: int) -> None:
        self._graph = _feature_maps(weights, size)

    def __call__(self, frames: npt.NDArray[np.uint8], threads: int = 1) -> Array:
        """Compute feature maps ``[n, 1280, size / 32, size / 32]`` of frames ``uint8 [n, size, size, 3]``."""
        return np.concatenate(map_in_threads(self._graph, np.split(frames, len(frames)), threads))


def _feature_maps(weights: Mapping[str, Array], size: int) -> CompiledGraph:
    graph = GraphBuilder("frames", np.uint8, [1, size, size, 3])
    bounds = graph.constant(np.float32(0)), graph.constant(np.float32(6))

    def convolve(values: str, layer: str, stride: int = 1, *, is_activated: bool = True) -> str:
        kernel = weights[f"{layer}.weight"]
        # TensorFlow's padding: the output has size / stride pixels, and an odd pixel of padding comes last.
        padding = max(kernel.shape[-1] - stride, 0)
        before, after = padding // 2, padding - padding // 2
        values = graph.apply(
            "Conv",
            values,
            graph.constant(kernel),
            graph.constant(weights[f"{layer}.bias"]),
            strides=[stride, stride],
            pads=[before, before, after, after],
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
    return graph.compile(convolve(values, "conv_head"), [1, "channels", size // 32, size // 32])
