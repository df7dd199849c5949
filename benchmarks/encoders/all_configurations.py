"""Check the contract of frozen encoders on every configuration of open_clip, with random weights and cut depth.

Usage: ``python -m benchmarks.encoders.all_configurations [PATTERN]``. A configuration with a tokenizer or a text tower
from the hub gets small ones in a local folder of the same format. The table says what was replaced; it does not say
that the model's own weights load.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import patch

import open_clip
import timm
import torch
from torch import Tensor
from transformers import M2M100Config, MT5Config, RobertaConfig, XLMRobertaConfig

from benchmarks.encoders.encoder_contract import WORDS, check_contract, write_open_clip
from models.backbones import open_clip_files

_LAYERS = 2
# How the constructors of timm's architectures name their depth.
_DEPTHS: tuple[dict[str, Any], ...] = (
    {"depth": _LAYERS},
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
)
_SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "pad_token_id": 0, "eos_token_id": 2}
# Text towers that the hub would send, by a part of their name.
_TEXT_TOWERS: dict[str, Callable[[], Any]] = {
    "xlm-roberta": lambda: XLMRobertaConfig(num_hidden_layers=_LAYERS, **_SIZES),
    "roberta": lambda: RobertaConfig(num_hidden_layers=_LAYERS, **_SIZES),
    "mt5": lambda: MT5Config(num_layers=_LAYERS, **_SIZES),
    "nllb": lambda: M2M100Config(encoder_layers=_LAYERS, decoder_layers=1, **_SIZES),
}


def main() -> None:
    """Check the configurations that match a pattern, and print a table and its totals."""
    pattern = sys.argv[1] if len(sys.argv) > 1 else "*"
    rows = []
    for model in filter(lambda name: fnmatch(name, pattern), open_clip.list_models()):
        config = open_clip.get_model_config(model)
        texts = config["text_cfg"]
        replaced = [
            part
            for part, key in (("tokenizer", "hf_tokenizer_name"), ("text tower", "hf_model_name"))
            if texts.get(key)
        ]
        with tempfile.TemporaryDirectory() as folder, _cut_trunks():
            outcome = _check(model, deepcopy(config), Path(folder))
        rows.append((model, bool(replaced), outcome))
        print(f"| {model} | cut | {', '.join(replaced) or 'none'} | {outcome} |", flush=True)
    passed = sum(outcome == "passed" for *_, outcome in rows)
    hub = sum(is_replaced for _, is_replaced, _ in rows)
    print(f"{len(rows)} configurations, all cut; hub part replaced: {hub}; contract passed: {passed}")
    sys.exit(passed < len(rows))


def _check(model: str, config: dict[str, Any], folder: Path) -> str:
    images, texts = config["vision_cfg"], config["text_cfg"]
    if "timm_model_name" not in images:
        images["layers"] = [1, 1, 1, 1] if isinstance(images["layers"], list) else _LAYERS
    for part in (texts, config.get("multimodal_cfg", {})):
        part["layers"] = _LAYERS
    hub_name = texts.get("hf_model_name", "")
    tower = next((build() for part, build in _TEXT_TOWERS.items() if part in hub_name), None)
    preprocessing = open_clip.get_pretrained_cfg(
        model, next(iter(open_clip.list_pretrained_tags_by_model(model)), "")
    )
    try:
        name = write_open_clip(folder, config, preprocessing, tower)
        check_contract(name, folder, frames=1)
    except Exception as error:  # the table names what failed
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "passed"


@contextmanager
def _cut_trunks() -> Iterator[None]:
    """Let timm build its architectures with fewer blocks, and treat plain CLIPs as frozen encoders, too."""
    create = timm.create_model

    def create_cut(name: str, **settings: Any) -> Any:
        for depth in _DEPTHS:
            try:
                return create(name, **settings, **depth)
            except (TypeError, IndexError):
                continue
        raise AssertionError(f"timm's {name} cannot be cut")

    with ExitStack() as patches:
        patches.enter_context(patch.object(timm, "create_model", create_cut))
        files = open_clip_files.OpenClipFiles
        patches.enter_context(patch.object(files, "has_open_blocks", property(lambda files: False)))
        for fill in ("normal_", "uniform_"):
            patches.enter_context(patch.object(torch.Tensor, fill, _fill))
        patches.enter_context(patch.object(torch.Tensor, "erfinv_", lambda tensor: tensor))
        yield


_VALUES = torch.randn(2**20, generator=torch.Generator().manual_seed(0)) / 50


def _fill(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    """Fill a tensor with repeated random values, which takes a tenth of the time of new ones."""
    repeated = _VALUES.repeat(-(-tensor.numel() // len(_VALUES)))
    return tensor.copy_(repeated[: tensor.numel()].view(tensor.shape))


if __name__ == "__main__":
    main()
