"""Pre-trained dual encoders, their tokenizers, and how their towers run."""

from typing import Literal, get_args

from models.backbones.open_clip_files import OPEN_CLIP_PREFIX, read_open_clip
from models.errors import BackboneUnavailable

Precision = Literal["float32", "bfloat16"]  # of a tower's products; settings import it without torch
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SMALL_NAMES = ("small", "lite2")  # backbones of one implementation, with weights from packages
TRANSFORMERS_PREFIX = "transformers:"  # of the names of transformers backbones


def has_open_blocks(name: str) -> bool:
    """Check, from its configuration alone, whether methods can change a backbone inside its towers.

    A backbone that does not exist counts as open; whoever loads it reports what is wrong.
    """
    if name.startswith(OPEN_CLIP_PREFIX):
        try:
            return read_open_clip(name).has_open_blocks
        except BackboneUnavailable:
            return True
    return not name.startswith(TRANSFORMERS_PREFIX)
