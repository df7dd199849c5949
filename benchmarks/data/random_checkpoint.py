"""Write a CLIP checkpoint with random weights, in the files that the model hub distributes.

The weights have the size and cost of trained ones and find nothing. They replace a download for testing speed, memory
and the path from a task to a search.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.push_to_hf_hub import HF_CONFIG_NAME, HF_SAFE_WEIGHTS_NAME, save_config_for_hf
from safetensors.torch import save_file

from models.backbones.open_clip_files import OPEN_CLIP_PREFIX


def write_random_checkpoint(model: str, folder: Path) -> str:
    """Write the weights and the configuration of a model in open_clip, and return the name of its backbone."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        clip: Any = open_clip.create_model(model, pretrained=None)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / HF_SAFE_WEIGHTS_NAME
    save_file({name: tensor.contiguous() for name, tensor in clip.state_dict().items()}, weights)
    save_config_for_hf(clip, folder / HF_CONFIG_NAME, model_config=open_clip.get_model_config(model))
    return f"{OPEN_CLIP_PREFIX}{model}/{weights.absolute()}"
