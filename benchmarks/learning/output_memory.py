"""Remember a frozen backbone's outputs: videos and texts pass the towers once for all runs of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import cast

import numpy as np
import torch
from torch import Tensor

from models.backbones.backbone import Backbone


def remember_outputs(backbone: Backbone, cache: Path) -> None:
    """Make a backbone with a frozen network compute the outputs for each video and each text batch once.

    Video tokens and features are kept in files, also for copies of the backbone, which share the network. Text vectors
    are kept in memory, for the backbone's own text tower. A backbone without a frozen network is left alone.
    """
    if not backbone.has_frozen_network:
        return
    folder = cache / f"features-{backbone.fingerprint}"
    folder.mkdir(parents=True, exist_ok=True)
    kind, vectors = type(backbone), dict[bytes, Tensor]()

    def remembered(frames: Tensor, compute: Callable[[Tensor], Tensor], suffix: str) -> Tensor:
        rows = []
        for video in frames.contiguous():
            path = folder / f"{blake2b(video.numpy().data, digest_size=16).hexdigest()}{suffix}.npy"
            if not path.exists():
                with NamedTemporaryFile(dir=folder, delete=False) as file:  # other runs may read the folder
                    np.save(file, compute(video[None])[0].cpu().numpy())
                Path(file.name).replace(path)
            rows.append(torch.from_numpy(np.load(path)))
        return torch.stack(rows).to(backbone.device)

    class Remembering(kind):  # type: ignore[misc, valid-type]
        def video_features(self, frames: Tensor) -> Tensor:
            return remembered(frames, super().video_features, "")

        def embed_frames(self, frames: Tensor) -> Tensor:
            return remembered(frames, super().embed_frames, "-tokens")

        def text_vectors(self, ids: Tensor) -> Tensor:
            if self.text is not backbone.text:
                return cast(Tensor, super().text_vectors(ids))
            key = np.array(ids.shape).tobytes() + ids.cpu().numpy().tobytes()
            if key not in vectors:
                with torch.no_grad():
                    vectors[key] = super().text_vectors(ids)
            return vectors[key]

    backbone.__class__ = Remembering
