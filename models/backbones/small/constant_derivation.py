"""Compute the constants of ``small`` from the installed weights.

``python -m models.backbones.small.constant_derivation`` writes them into the package. Generic texts are names and
definitions of WordNet nouns, as timm lists them for ImageNet-12k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.bert_tokenizer import probe_ids
from models.backbones.small.image_tower import FEATURES, published_classifier
from models.backbones.small.small_backbone import build_small, load_small
from models.backbones.small.small_files import DerivedConstants, constants_path
from models.backbones.small.text_side import write_identity

_DIM = 384
_SHRINKAGE = 0.3  # share of the mean variance that is added to each variance of the background
_BATCH = 128


def generic_texts() -> list[str]:
    """Take every third name and every sixth definition of the nouns in ImageNet-12k."""
    info: Any = ImageNetInfo("imagenet-12k")
    count = info.num_classes()
    names = [info.index_to_description(index) for index in range(0, count, 3)]
    # A detailed description is "<names>: <definition>".
    detailed = (info.index_to_description(index, detailed=True) for index in range(0, count, 6))
    return names + [text.split(": ", 1)[-1] for text in detailed]


@torch.no_grad()
def derive_constants(texts: Sequence[str] | None = None) -> DerivedConstants:
    """Compute the constants of ``small``, in float32.

    Args:
        texts: Generic texts; None for :func:`generic_texts`.

    Raises:
        BackboneUnavailable: A package with weights is missing or altered.
    """
    uncentered = build_small(
        DerivedConstants(
            projection=np.zeros((FEATURES, _DIM), np.float32),
            text_center=np.zeros(_DIM, np.float32),
            background_mean=np.zeros(_DIM, np.float32),
            background_precision=np.eye(_DIM, dtype=np.float32),
        )
    ).clone()  # a copy has no compiled text tower, which rounds weights
    info: Any = ImageNetInfo("imagenet-1k")
    class_names = [info.index_to_description(index) for index in range(info.num_classes())]
    generic = _text_vectors(uncentered, generic_texts() if texts is None else texts)
    center = generic.mean(dim=0)
    generic = F.normalize(generic - center, dim=-1)
    covariance = generic.T.cov()
    regularized = covariance + _SHRINKAGE * covariance.diagonal().mean() * torch.eye(_DIM)
    names = F.normalize(_text_vectors(uncentered, class_names) - center, dim=-1)
    classifier = published_classifier().double()
    projection = (classifier - classifier.mean(dim=0)).T @ (names - names.mean(dim=0))
    constants = (projection, center, generic.mean(dim=0), torch.linalg.inv(regularized))
    return DerivedConstants(*(tensor.float().contiguous().numpy() for tensor in constants))


def _text_vectors(backbone: Backbone, texts: Sequence[str]) -> Tensor:
    """Encode texts to ``float64 [n, dim]``; texts of similar length share a batch."""
    vectors = torch.empty(len(texts), _DIM, dtype=torch.float64)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        ids = backbone.tokenize([texts[row] for row in rows])
        vectors[rows] = backbone.text_vectors(ids)[:, :_DIM].double()
    return vectors


def _write() -> None:
    constants: dict[str, npt.NDArray[np.floating]] = derive_constants()._asdict()
    # Half precision is harmless for the projection, whose products are normalized, and halves the file.
    constants["projection"] = constants["projection"].astype(np.float16)
    save_file(constants, constants_path())
    backbone = load_small()
    ids = torch.from_numpy(probe_ids(backbone.vocabulary))
    with torch.no_grad():
        vectors = backbone.clone().text_vectors(ids)  # a copy runs in torch
    write_identity(backbone.fingerprint, vectors.numpy())


if __name__ == "__main__":
    _write()
