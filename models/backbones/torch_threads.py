"""How many threads torch uses, in a process that may import it later or never."""

from __future__ import annotations

import sys

_threads: int | None = None


def set_torch_threads(threads: int) -> None:
    """Set how many threads one torch operation uses in this process."""
    global _threads
    _threads = threads
    if "torch" in sys.modules:
        apply_torch_threads()


def apply_torch_threads() -> None:
    """Apply the number of threads, if set. Called by code that imports torch on use."""
    if _threads is not None:
        import torch

        torch.set_num_threads(_threads)
