"""Pre-trained dual encoders, their tokenizers, and how their towers run."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]  # of the text tower; settings import it without torch
OPEN_CLIP_PREFIX = "open_clip:"  # begins the name of a backbone from open_clip
TRANSFORMERS_PREFIX = "transformers:"  # begins the name of a backbone from the transformers library


def has_open_blocks(name: str) -> bool:
    """Check, without loading a backbone, whether adapters can work inside the blocks of both its towers."""
    return not name.startswith(TRANSFORMERS_PREFIX)
