"""Check the machine itself: its device, and the checkpoints that the other checks load."""

from __future__ import annotations

import os
import platform
import time

import torch

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan


def describe_machine(plan: GpuPlan) -> Figures:
    """Report the device's name, memory and software; fails if torch cannot compute on it."""
    figures: Figures = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
    }
    if plan.device == "cuda":
        if not torch.cuda.is_available():
            raise CheckFailed(
                f"torch {torch.__version__} finds no usable GPU ({_explain_missing_gpu()}); "
                "`make gpu-check DEVICE=cpu` checks the script alone",
                figures,
            )
        properties = torch.cuda.get_device_properties(0)
        figures |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 1024**3, 1),
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    product = torch.ones(64, 64, device=plan.device) @ torch.ones(64, 64, device=plan.device)
    if float(product.sum()) != 64.0**3:
        raise CheckFailed("the device multiplies wrongly", figures)
    return figures


def _explain_missing_gpu() -> str:
    """Return the first sentence of torch's own reason, such as a driver that is too old."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the latter in a build without CUDA
        return str(error).partition(". ")[0].strip()
    return "it lists no device"


def write_checkpoints(plan: GpuPlan) -> Figures:
    """Write the checkpoints with random weights, and report their sizes."""
    from benchmarks.data.random_checkpoint import write_random_checkpoint

    figures: Figures = {}
    for model in plan.models:
        began = time.perf_counter()
        write_random_checkpoint(model, plan.folder / model)
        bytes_ = (plan.folder / model / "open_clip_model.safetensors").stat().st_size
        figures |= {
            f"{model}_gib": round(bytes_ / 1024**3, 2),
            f"{model}_seconds": round(time.perf_counter() - began, 1),
        }
    return figures
