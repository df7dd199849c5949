"""Pre-trained dual encoders, their tokenizers, and how their towers compute."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]  # of the text tower; settings import it without torch
OPEN_CLIP_PREFIX = "open_clip:"  # of the names of backbones of open_clip
TRANSFORMERS_PREFIX = "transformers:"  # of the names of backbones of the transformers library


def has_open_blocks(name: str) -> bool:
    """Return whether adapters can work inside the blocks of both towers of a backbone, which is not loaded."""
    return not name.startswith(TRANSFORMERS_PREFIX)
