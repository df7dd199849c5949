"""Writer of releases in schema 2, where each release stores the tasks and profiles of all earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from models.releases.release_state import ReleaseState

__all__ = ["write_schema_2"]


def write_schema_2(folder: Path, state: ReleaseState) -> None:
    """Write the files of a release in schema 2."""
    profiles = {
        "routing.tokens": torch.from_numpy(state.profiles.tokens.astype(np.int32)),
        "routing.values": torch.from_numpy(state.profiles.values).half(),
        "routing.ends": torch.from_numpy(state.profiles.ends.astype(np.int64)),
        "routing.vocabulary": torch.tensor(state.profiles.vocabulary),
    }
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.tensors.items()}
    save_file(tensors | profiles, folder / "weights.safetensors")
    description = {
        "schema": 2,
        "method": state.method,
        "kind": state.kind,
        "backbone": state.backbone,
        "backbone_fingerprint": state.backbone_fingerprint,
        "fingerprint": state.fingerprint,
        "frames": state.frames,
        "tasks": [vars(task) for task in state.tasks],
        "config": state.config,
    }
    if state.confidence is not None:
        description["confidence"] = state.confidence.to_json()
    (folder / "release.json").write_text(json.dumps(description, indent=2, sort_keys=True) + "\n")
