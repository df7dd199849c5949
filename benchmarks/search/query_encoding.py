"""Measure query encoding: the text tower's runtimes and precisions, and one text for many tasks. Prints tables.

    python -m benchmarks.search.query_encoding                 # both towers
    python -m benchmarks.search.query_encoding --tower tiny    # one of them

The towers are ``tiny`` and the text tower of ViT-B/32 with random weights. Runtimes are measured in one thread on a
text of 12 words, as the median processor time of several runs, which hardly depends on the machine's other load.

Texts of one to twelve words are encoded for many tasks. The wall time is compared, in alternating runs, with encoding
for one task after the other, and with open_clip, which pads every text to its context length and needs one model per
task. open_clip uses one thread per core; the query encoder uses one thread for a single text and one per core for many.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.learning.training_speed import random_backbone
from benchmarks.reporting.markdown_tables import markdown_table
from models.adapters.low_rank_text_update import TextUpdate
from models.backbones import Precision
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.packed_text_tower import pack_text_tower
from models.backbones.token_ids import TokenIds
from models.backbones.tower_computation import has_fast_bfloat16, mixed_precision
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from models.encoders.query_encoder import QueryEncoder
from models.encoders.tower_forward import encode_texts
from models.releases.release_lineage import ReleaseTask
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import to_arrays
from models.routing.routing_profiles import RoutingProfiles

_TEXT = "a little red taxi turns left and stops before a bright window"
_TEXTS = ("taxi", "red taxi", "little red taxi", "a little red taxi", "a little red taxi turns left", _TEXT)
_BATCHES = (1, 16)
_TASKS = 100
_RANK = 16
_RUNS = 7


class _Tower(nn.Module):
    """The frozen text tower as a function of token IDs."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, ids: Tensor) -> Tensor:
        """Compute unit vectors ``[n, dim]``."""
        return encode_texts(self.backbone, ids)[0]


def tower(name: str) -> Backbone:
    """Load ``tiny``, or build the shape of ViT-B/32 with random weights."""
    return load_backbone("tiny") if name == "tiny" else random_backbone(f"open_clip:{name}/random", 8)


def runtimes(backbone: Backbone) -> Iterator[tuple[str, Callable[[Tensor], object] | str]]:
    """Yield the frozen text tower's runtimes as functions of token IDs; for an unavailable one, the reason."""
    module = _Tower(backbone)

    def bfloat16(ids: Tensor) -> Tensor:
        with mixed_precision():
            return module(ids)

    emulated = "" if has_fast_bfloat16(backbone.device) else " (emulated)"
    yield "torch, eager", module
    yield f"torch, eager, bfloat16{emulated}", bfloat16
    names: dict[Precision, str] = {"float32": "packed", "bfloat16": f"packed, bfloat16{emulated}"}
    for precision, name in names.items():
        backbone.query_precision = precision
        tower = pack_text_tower(backbone)
        yield name, "not on this machine" if tower is backbone else _Tower(tower)
    backbone.query_precision = "float32"
    yield "torch.compile", torch.compile(module, dynamic=False)
    yield "onnxruntime", _onnx(module, backbone.tokenize([_TEXT]))


def _onnx(module: nn.Module, ids: Tensor) -> Callable[[Tensor], object]:
    file = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (ids.repeat(2, 1),),
            file,  # type: ignore[arg-type]  # a path, says its annotation; without dynamo a file does too
            dynamo=False,
            opset_version=17,
            input_names=["ids"],
            dynamic_axes={"ids": {0: "n"}},
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, {"ids": batch.numpy()})


def random_updates(backbone: Backbone, tasks: int) -> list[TextUpdate]:
    """Draw random low-rank updates with token updates, one per task."""
    updates = []
    for _ in range(tasks):
        update = TextUpdate.for_backbone(backbone, rank=_RANK, scale=1.0)
        nn.init.normal_(update.b, std=0.02)
        rows = torch.randperm(backbone.vocabulary)[: backbone.vocabulary // 10]
        with torch.no_grad():
            update.words[rows] = 0.01 * torch.randn(len(rows), backbone.text_width)
        updates.append(update)
    return updates


def pinned_encoder(backbone: Backbone, updates: Sequence[TextUpdate]) -> QueryEncoder:
    """Build a query encoder in which every task has its own pinned update."""
    states: dict[str, ReleaseState] = {}
    tasks = len(updates)
    known = [ReleaseTask(str(t), str(t), "f" * 64) for t in range(tasks)]
    for task, update in zip(known, updates, strict=True):
        states[task.task_id] = ReleaseState(
            method="strata",
            kind=LOW_RANK_FAMILY.kind,
            backbone=backbone.name,
            backbone_fingerprint=backbone.fingerprint,
            fingerprint="f" * 64,
            frames=backbone.spec.frames,
            tasks=known,
            config={"scale": 1.0},
            profiles=RoutingProfiles.from_dense(np.zeros((tasks, backbone.vocabulary), np.float32)),
            tensors=to_arrays({f"text.{name}": tensor.clone() for name, tensor in update.tensors().items()}),
        )
    return open_query_encoder(backbone, states[known[-1].task_id], states)


def _milliseconds(run: Callable[[], object]) -> float:
    """Measure this thread's median processor time over several runs."""
    run()
    times = []
    for _ in range(_RUNS):
        start = time.thread_time()
        run()
        times.append(1000 * (time.thread_time() - start))
    return statistics.median(times)


def _in_turns(*runs: Callable[[], object]) -> list[float]:
    """Measure each function's median wall time over several alternating rounds."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(_RUNS):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(1000 * (time.perf_counter() - start))
    return [statistics.median(taken) for taken in times]


@torch.inference_mode()
def _runtime_rows(backbone: Backbone) -> Iterator[list[str]]:
    ids = backbone.tokenize([_TEXT])
    for name, run in runtimes(backbone):
        if isinstance(run, str):
            yield [name, *[run] * len(_BATCHES)]
        else:
            yield [name, *(f"{_milliseconds(partial(run, ids.repeat(n, 1))):.2f}" for n in _BATCHES)]


def merged(backbone: Backbone, update: TextUpdate) -> nn.Module:
    """Merge an update into the weights of an open_clip model, which then serves one task only."""
    model: nn.Module = backbone.clone().clip
    text: Any = getattr(model, "text", model)
    with torch.no_grad():
        text.token_embedding.weight += update.words
        for block, a, b in zip(text.transformer.resblocks, update.a, update.b, strict=True):
            query_key_value, out = (update.scale * b @ a).split((3, 1))
            block.attn.in_proj_weight += query_key_value.flatten(0, 1)
            block.attn.out_proj.weight += out[0]
    return model


@torch.inference_mode()
def _task_rows(backbone: Backbone) -> Iterator[list[str]]:
    updates = random_updates(backbone, _TASKS)
    encoder = pinned_encoder(backbone, updates)
    alone: Any = merged(backbone, updates[0])
    tasks = [str(task) for task in range(_TASKS)]
    for text in _TEXTS:
        (tokens,) = encoder.tokenize([text])
        # Pad like open_clip's tokenizer.
        padded = F.pad(backbone.tokenize([text]), (0, alone.context_length - len(tokens)))
        expected = alone.encode_text(padded, normalize=True).numpy()
        np.testing.assert_allclose(encoder.encode_pairs([tokens], ["0"], "pinned"), expected, atol=1e-5)

        def all_together(tokens: TokenIds = tokens) -> None:
            encoder.encode_pairs([tokens] * _TASKS, tasks, "pinned")

        def one_by_one(tokens: TokenIds = tokens) -> None:
            for task in tasks:
                encoder.encode_pairs([tokens], [task], "pinned")

        def rival(padded: Tensor = padded) -> None:
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            alone.encode_text(padded)
            torch.set_num_threads(1)

        # open_clip's threads spin for a while after their work, which would slow down the next function.
        once, apart, together = _in_turns(rival, one_by_one, all_together)
        others = (f"{ms:.1f} ({ms / together:.1f})" for ms in (apart, _TASKS * once))
        yield [str(len(text.split())), str(len(tokens)), f"{together:.1f}", *others]


def main() -> None:
    """Parse the command line, measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tower", choices=("tiny", "ViT-B-32"), action="append")
    torch.set_num_threads(1)
    for name in parser.parse_args().tower or ("tiny", "ViT-B-32"):
        backbone = tower(name)
        length = backbone.tokenize([_TEXT]).shape[1]
        sys.stdout.write(f"\n{name}, {length} tokens, milliseconds of one thread\n\n")
        sys.stdout.write(
            markdown_table(
                ["frozen text tower", *(f"batch of {n}" for n in _BATCHES)], list(_runtime_rows(backbone))
            )
        )
        sys.stdout.write(f"\n{name}, one text under the low-rank updates of {_TASKS} tasks, milliseconds\n\n")
        sys.stdout.write(
            markdown_table(
                ["words", "tokens", "together", "one by one (ratio)", "open_clip, merged weights (ratio)"],
                list(_task_rows(backbone)),
            )
        )


if __name__ == "__main__":
    main()
