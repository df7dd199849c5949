"""The text side of ``small`` and ``lite2`` in a compiled engine, for processes that only answer queries.

It imports no torch. A backbone's fingerprint covers the weights of both towers, so it cannot be computed here. The
package's file ``text_side.safetensors`` stores it for each backbone, with the digest of the derived constants that it
belongs to; the digests of the weight package are checked.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from models.backbones.backbone_description import TextBackground, TokenIds, pad_texts
from models.backbones.bert_tokenizer import PADDING, probe_ids
from models.backbones.compiled_towers import ENGINE, BertEngine
from models.backbones.frozen_tower import EngineUnavailable, require_similar
from models.backbones.query_backbone import QueryBackbone, Vectors, apply_torch_threads
from models.backbones.small.small_files import (
    RESERVED,
    SMALL_MODELS,
    TEXT_PACKAGE,
    SmallModel,
    load_tokenizer,
    package_file,
    verified_folder,
)

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone

_FILE = "text_side.safetensors"


class SmallTextSide(QueryBackbone):
    """The text tower of ``small`` and ``lite2`` in ONNX Runtime; :meth:`towers` loads the image tower for its frames.

    Raises BackboneUnavailable if a package with weights is missing or altered, or the derived constants are missing,
    and EngineUnavailable if the engine's vectors differ from torch's by more than rounding explains, or the fingerprint
    for these constants is unknown.
    """

    def __init__(self, name: str, frames: int | None = None) -> None:
        super().__init__()
        model = SMALL_MODELS[name]
        folder, constants = verified_folder(TEXT_PACKAGE), model.load_constants()
        fingerprint, expected = read_identity(model)
        config = json.loads((folder / "config.json").read_text())
        width = len(constants.text_center)
        self.vocabulary = int(config["vocab_size"])
        with (folder / "model.safetensors").open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._engine = BertEngine(
            _read_weights(mapped),
            config["num_attention_heads"],
            config["layer_norm_eps"],
            np.eye(width, width + RESERVED, dtype=np.float32),
            constants.text_center,
        )
        # The engine has copies; of the word embeddings, texts read a few rows.
        mapped.madvise(mmap.MADV_DONTNEED)
        require_similar(self._engine(probe_ids(self.vocabulary)), expected)
        self.tokenize = load_tokenizer().tokens
        self.name, self.fingerprint = name, fingerprint
        self.dim = width + RESERVED
        self.text_background = TextBackground(constants.background_mean, constants.background_precision)
        self._frames = frames
        self._towers: Backbone | None = None
        self._lock = Lock()

    @property
    def engine(self) -> str:
        return ENGINE

    def towers(self) -> Backbone:
        with self._lock:
            if self._towers is None:
                from models.backbones.small.small_backbone import load_small

                apply_torch_threads()
                self._towers = load_small(self.name, self._frames)
        return self._towers

    def _encode_one(self, text: TokenIds) -> Vectors:
        vectors: Vectors = self._engine(text[None])[0]
        return vectors

    def _encode_batch(self, texts: Sequence[TokenIds]) -> Vectors:
        return self._engine(pad_texts(texts, PADDING))


def read_identity(model: SmallModel) -> tuple[str, Vectors]:
    """Load the backbone's fingerprint, and the vectors of :func:`probe_ids`; raise EngineUnavailable if the file cannot
    be read, or the constants have changed since.
    """
    try:
        with safe_open(package_file(_FILE), framework="numpy") as file:
            metadata, vectors = file.metadata(), file.get_tensor("vectors")
            constants, fingerprint = (
                metadata[f"{model.name} constants"],
                metadata[f"{model.name} fingerprint"],
            )
    except (OSError, SafetensorError, KeyError) as error:
        raise EngineUnavailable(f"{_FILE} cannot be read ({error})") from error
    if constants != model.constants_digest():
        raise EngineUnavailable(f"{_FILE} does not belong to {', '.join(model.files)}")
    return fingerprint, vectors


def _read_weights(mapped: mmap.mmap) -> dict[str, npt.NDArray[Any]]:
    """View the float32 weights in a mapped safetensors file, without copying them."""
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    return {
        name: np.frombuffer(
            mapped, np.float32, np.prod(entry["shape"], dtype=int), start + entry["data_offsets"][0]
        ).reshape(entry["shape"])
        for name, entry in header.items()
        if entry.get("dtype") == "F32"
    }
