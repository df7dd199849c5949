"""A device that computes on the CPU, and records each operation that would make the host wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("meta")  # a device that torch needs no driver for
_DYNAMIC_SHAPES = {"nonzero", "masked_select"}


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
