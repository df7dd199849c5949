"""Memory of the outputs of a frozen backbone: videos and texts pass the towers once for all runs of a benchmark."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.backbones.backbone import Backbone


def remember_outputs(backbone: Backbone, cache: Path) -> None:
    """Make a backbone with closed blocks compute the features of each video and the states of each text batch once.

    Features are kept in files, states in memory. A backbone with open blocks is not changed.

    Args:
        backbone: Backbone, which is changed in place.
        cache: Folder of the features.
    """
    if backbone.visual_blocks:
        return
    folder = cache / f"features-{backbone.fingerprint}"
    folder.mkdir(parents=True, exist_ok=True)
    compute_features, compute_states = backbone.video_features, backbone.text_vectors
    features: dict[str, Tensor] = {}
    states: dict[bytes, Tensor] = {}

    @torch.no_grad()
    def video_features(frames: Tensor) -> Tensor:
        keys = [blake2b(video.numpy().data, digest_size=16).hexdigest() for video in frames.contiguous()]
        for row, key in enumerate(keys):
            path = folder / f"{key}.npy"
            if key not in features and path.exists():
                features[key] = torch.from_numpy(np.load(path))
            if key not in features:
                features[key] = compute_features(frames[row : row + 1])[0].cpu()
                np.save(path, features[key].numpy())
        return torch.stack([features[key] for key in keys]).to(backbone.device)

    @torch.no_grad()
    def embed_frames(frames: Tensor) -> Tensor:
        # Features are the root of the mean over frames, so that one frame with one token gives the video's vector.
        return video_features(frames).square()[:, None, None]

    @torch.no_grad()
    def text_vectors(ids: Tensor) -> Tensor:
        key = np.array(ids.shape).tobytes() + ids.cpu().numpy().tobytes()
        if key not in states:
            states[key] = compute_states(ids)
        return states[key]

    for function in (video_features, embed_frames, text_vectors):
        setattr(backbone, function.__name__, function)
