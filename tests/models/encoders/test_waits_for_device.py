"""A batch of queries waits for its device once, and its vectors are those of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.backbones.frozen_tower import FrozenTower
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from tests.models.encoders.small_releases import low_rank_release, small_release, tame_release
from tests.trainer.methods.small_driver import random_small_backbone

DEVICE = torch.device("meta")  # a device that torch needs no driver for
_DYNAMIC_SHAPES = {"nonzero", "masked_select"}
TEXTS = ["a star", "two stars spin around a red circle", "the ring bounces until it is gone"]
TASKS = ["0", "2", "1", "0"]


class DeviceTensor(Tensor):
    """Tensor on the simulated device, which only works within :class:`SimulatedDevice`.

    Attributes:
        values: The same values on the CPU.
    """

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=DEVICE
        )
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} reaches the device outside of its simulation")


class SimulatedDevice(TorchDispatchMode):
    """Context in which operations on tensors of :data:`DEVICE` compute on the CPU.

    Attributes:
        waits: Operations that wait for the device: blocking copies in either direction, values that the host reads, and
            shapes that depend on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = dict(zip((part.name for part in func._schema.arguments), args, strict=False)) | (
            kwargs or {}
        )
        tensors: list[Tensor] = []
        tree_map(lambda value: tensors.append(value) if isinstance(value, Tensor) else None, arguments)
        for tensor in tensors:
            # torch.tensor(…, device=DEVICE) copies without a call of this method.
            assert tensor.device.type != DEVICE.type or isinstance(tensor, DeviceTensor), "a blocking copy"
        was_here = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
        target = arguments.get("device")
        is_here = was_here if target is None else torch.device(target).type == DEVICE.type
        if target is not None:
            arguments["device"] = torch.device("cpu")
        name, values = func.overloadpacket.__name__, tree_map(_values, arguments)
        if (
            name == "_has_compatible_shallow_copy_type"
        ):  # Module.to asks whether it may replace the values only
            return False
        result = func(**values)
        if (tensors and was_here != is_here and not arguments.get("non_blocking")) or (
            was_here and (not isinstance(result, Tensor | Sequence) or _has_dynamic_shape(name, values))
        ):
            self.waits.append(name)
        if func._schema.is_mutable:
            return args[0]
        return tree_map(_on_device, result) if is_here else result


def _values(value: Any) -> Any:
    return value.values if isinstance(value, DeviceTensor) else value


def _on_device(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, Tensor) else value


def _has_dynamic_shape(name: str, arguments: dict[str, Any]) -> bool:
    """Check whether the shape of an operation's result depends on the values of its arguments."""
    positions = arguments.get("indices", ()) if name == "index" else ()
    return name in _DYNAMIC_SHAPES or any(
        isinstance(part, Tensor) and part.dtype == torch.bool for part in positions
    )


def _releases(backbone: Backbone) -> dict[str, ReleaseState]:
    torch.manual_seed(1)
    return {
        "frozen": small_release(backbone, "frozen", {}),
        "tame": tame_release(backbone, bare_first=True),
        "low_rank": low_rank_release(backbone, 20),
        "tower": small_release(backbone, "tower", backbone.clone().tensors()),
    }


def _encode(encoder: QueryEncoder) -> np.ndarray:
    """Encode one batch of searches, whose texts have different lengths."""
    tokens = encoder.tokenize(TEXTS)
    return encoder.encode_pairs([*tokens, tokens[2]], TASKS, encoder.modes[-1])


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")  # the simulation does copy
@pytest.mark.parametrize("kind", ["frozen", "tame", "low_rank", "tower"])
@pytest.mark.parametrize("make", [lambda: tiny_backbone(2), random_small_backbone], ids=["clip", "bert"])
def test_a_batch_of_queries_waits_once(
    make: Callable[[], Backbone], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrozenTower, "engine", lambda self: None)  # on the CPU, it rounds weights
    torch.manual_seed(0)
    backbone = make()
    release = _releases(backbone)[kind]
    expected = _encode(open_query_encoder(copy.deepcopy(backbone), release, dict.fromkeys("012", release)))
    with torch.inference_mode(), SimulatedDevice() as device:
        backbone.to(DEVICE)
        encoder = open_query_encoder(backbone, release, dict.fromkeys("012", release))
        device.waits.clear()
        found = _encode(encoder)
    assert len(device.waits) == 1, device.waits
    np.testing.assert_allclose(found, expected, atol=2e-6)
