"""Pre-trained dual encoders, their tokenizers, and how their towers run."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]  # of the text tower; settings import it without torch
SMALL_NAMES = ("small", "lite2")  # backbones of one implementation, with weights from packages
OPEN_CLIP_PREFIX = "open_clip:"  # of the names of open_clip backbones
TRANSFORMERS_PREFIX = "transformers:"  # of the names of transformers backbones


def has_open_blocks(name: str) -> bool:
    """Check, without loading a backbone, whether adapters can work inside the blocks of both its towers."""
    return not name.startswith(TRANSFORMERS_PREFIX)
