"""Whether confidence is what it says: ``python -m benchmarks.merging.confidence_quality --out DIR``.

A library of the first domains of a protocol is learned. Confidence is fitted as a worker fits it, to captions of
``val`` videos, and tried on two kinds of captions that nothing has seen: those of test videos, which are there to be
found, and those of domains that were never learned, which are not. Beside it stand the score itself, and fits to
training captions (which are at hand, but which the model has learned by heart) and to the test captions (a bound: no
fit can know more). Writes confidence.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.learning.method_variants import MethodVariant
from benchmarks.learning.protocol import load_protocol
from benchmarks.learning.task_preparation import prepare_tasks
from benchmarks.reporting.markdown_tables import markdown_table
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders.encoder_registry import open_query_encoder, select_query_tensors
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from models.routing.confidence_model import ConfidenceModel, logistic
from models.routing.defaults import DEFAULT_PRIOR
from trainer.evaluation.confidence_fitting import (
    CalibrationTask,
    LabeledResults,
    fit_confidence,
    label_results,
)
from trainer.evaluation.reliability import area_under_roc, reliability
from trainer.methods import start_method
from trainer.task_data import StoredVectors, TaskData
from trainer.training_loop import learn_task
from trainer.video_embedding import MemoryShard, embed_clips

__all__ = ["Learned", "Quality", "learn", "main", "measure"]

Floats = npt.NDArray[np.floating]
Split = Literal["train", "val", "test"]
_CACHE = Path("cinestrata-data/bench/frames")


@dataclass(frozen=True)
class Learned:
    """Domains that were learned one after the other, and what searches them."""

    tasks: Sequence[TaskData]
    shards: Sequence[MemoryShard]
    encoder: QueryEncoder
    profiles: npt.NDArray[np.float32]

    @property
    def mode(self) -> str:
        """That keeps most."""
        return self.encoder.modes[-1]

    def known(
        self, split: Split | None, galleries: Sequence[str], *, first: bool = False
    ) -> list[CalibrationTask]:
        """Every task with the captions of a split, or without any.

        Args:
            galleries: splits whose videos may be found.
            first: only the first caption of each video.
        """
        return [
            CalibrationTask(
                task.task_id,
                shard,
                np.array([clip.vector_id for clip in task.clips if clip.split in galleries], np.int64),
                tuple(
                    (clip.vector_id, caption)
                    for clip in task.clips
                    if clip.split == split
                    for caption in clip.captions[: 1 if first else None]
                ),
            )
            for task, shard in zip(self.tasks, self.shards, strict=True)
        ]

    def lists(self, known: Sequence[CalibrationTask]) -> list[LabeledResults]:
        """What captions are answered while their video is in the gallery, if it is in the library at all."""
        answered = label_results(self.encoder, known, self.profiles, mode=self.mode, prior=DEFAULT_PRIOR)
        return [asked for asked in answered if asked.present]

    def fit(self, known: Sequence[CalibrationTask]) -> ConfidenceModel | None:
        """As a worker fits it."""
        return fit_confidence(self.encoder, known, self.profiles, mode=self.mode, prior=DEFAULT_PRIOR)


@dataclass(frozen=True)
class Quality:
    """Of what is said of first results.

    Attributes:
        error: expected calibration error.
        right: area under the curve, right against wrong first results.
        learned: the same, captions of learned against those of unlearned domains.
        captions: fitted to.
    """

    name: str
    error: float
    right: float
    learned: float
    captions: int


def learn(tasks: Sequence[TaskData], backbone: Backbone, method: str, settings: Mapping[str, Any]) -> Learned:
    """Learn domains in order, each with a release of its own."""
    release: ReleaseState | None = None
    makers: dict[str, ReleaseState] = {}
    shards: list[MemoryShard] = []
    for number, task in enumerate(tasks):
        learner = start_method(method, backbone, settings, release)
        earlier = zip(
            shards, (np.array([c.vector_id for c in t.train], np.int64) for t in tasks[:number]), strict=True
        )
        learn_task(learner, task, StoredVectors(list(earlier)))
        release = learner.release()
        makers[task.task_id] = select_query_tensors(release)
        ids = np.array([clip.vector_id for clip in task.clips], np.int64)
        stored = embed_clips(learner.encode_videos, task.clips).astype(np.float16).astype(np.float32)
        shards.append(MemoryShard(ids, stored))
    if release is None:
        raise ValueError("nothing is to be learned")
    encoder = open_query_encoder(backbone, select_query_tensors(release), makers)
    return Learned(tasks, shards, encoder, release.profiles.to_dense())


def measure(learned: Learned, unlearned: Sequence[TaskData]) -> list[Quality]:
    """Of the score, and of each fit."""
    everything = ("train", "val", "test")
    there = learned.lists(learned.known("test", everything, first=True))
    foreign = tuple((-1, clip.captions[0]) for task in unlearned for clip in task.test)
    library = learned.known(None, everything)
    absent = learned.lists([replace(library[0], captions=foreign), *library[1:]])
    fits = {
        "fitted to training captions": learned.known("train", ("train", "val")),
        "fitted to val captions, as workers do": learned.known("val", ("train", "val")),
        "fitted to the test captions (bound)": learned.known("test", everything, first=True),
    }
    found = [_quality("score, cut to 0..1", np.clip(_scores(there), 0, 1), _scores(absent), there, 0)]
    for name, known in fits.items():
        confidence = learned.fit(known)
        if confidence is not None:
            said, elsewhere = (_said(lists, confidence) for lists in (there, absent))
            found.append(_quality(name, said, elsewhere, there, confidence.captions))
    return found


def _scores(lists: Sequence[LabeledResults]) -> Floats:
    return np.array([asked.features[0, 0] for asked in lists])


def _said(lists: Sequence[LabeledResults], confidence: ConfidenceModel) -> Floats:
    rows = np.array([asked.features[0] for asked in lists])
    return logistic(rows @ np.array(confidence.weights) + confidence.bias)


def _quality(
    name: str, said: Floats, elsewhere: Floats, there: Sequence[LabeledResults], captions: int
) -> Quality:
    right = np.array([bool(asked.relevant[0]) for asked in there])
    told = np.concatenate([np.ones(len(said), np.bool_), np.zeros(len(elsewhere), np.bool_)])
    return Quality(
        name=name,
        error=reliability(said, right).error,
        right=area_under_roc(said, right),
        learned=area_under_roc(np.concatenate([said, elsewhere]), told),
        captions=captions,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see above."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.merging.confidence_quality", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--protocol", default="world-dev")
    parser.add_argument("--method", default="strata")
    parser.add_argument("--learned", type=int, default=4, help="domains")
    parser.add_argument(
        "--unlearned", type=int, default=3, help="domains after them, whose captions fit nothing"
    )
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder of drawn frames")
    parser.add_argument("--out", type=Path, required=True, help="folder for confidence.json")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    protocol = load_protocol(chosen.protocol)
    backbone = load_backbone("tiny", protocol.frames)
    tasks = prepare_tasks(protocol, backbone.spec, chosen.cache, tasks=chosen.learned + chosen.unlearned)
    settings = protocol.settings_of(MethodVariant.model_validate({"method": chosen.method}))
    learned = learn(tasks[: chosen.learned], backbone, chosen.method, settings)
    found = measure(learned, tasks[chosen.learned :])
    chosen.out.mkdir(parents=True, exist_ok=True)
    facts = {
        **{name: str(value) for name, value in vars(chosen).items()},
        "found": [asdict(one) for one in found],
    }
    (chosen.out / "confidence.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    header = ["first result", "ECE", "right or wrong", "learned or not", "captions"]
    cells = [[q.name, f"{q.error:.3f}", f"{q.right:.3f}", f"{q.learned:.3f}", str(q.captions)] for q in found]
    print(markdown_table(header, cells))


if __name__ == "__main__":
    main()
