"""Quality of the confidence of search results: ``python -m benchmarks.merging.confidence_quality --out DIR``.

The first domains of a protocol are learned. The confidence model is fitted to captions of ``val`` videos, as in the
learning job, and evaluated on two kinds of unseen captions: those of test videos, which the library contains, and those
of domains that were not learned, which it does not contain. It is compared with the raw score, with a fit to training
captions (available, but memorized by the model) and with a fit to the test captions (an upper bound). The command
writes confidence.json and prints a table.
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
from models.routing.confidence_model import ConfidenceModel, logistic
from models.routing.defaults import DEFAULT_PRIOR
from trainer.evaluation.confidence_fitting import (
    CalibrationTask,
    LabeledResults,
    fit_confidence,
    label_results,
)
from trainer.evaluation.reliability import area_under_roc, reliability
from trainer.sequential_learning import SequentialLearner
from trainer.task_data import TaskData
from trainer.video_embedding import MemoryShard

__all__ = ["ConfidenceLibrary", "ConfidenceQuality", "learn_library", "main", "measure_confidence"]

Floats = npt.NDArray[np.floating]
Split = Literal["train", "val", "test"]
_CACHE = Path("cinestrata-data/bench/frames")


@dataclass(frozen=True)
class ConfidenceLibrary:
    """Learned tasks with their shards, in memory.

    Attributes:
        tasks: Tasks in the order of learning.
        shards: Shard of each task.
        encoder: Query encoder over all shards.
        profiles: Routing profiles ``[T, V]``.
    """

    tasks: Sequence[TaskData]
    shards: Sequence[MemoryShard]
    encoder: QueryEncoder
    profiles: npt.NDArray[np.float32]

    @property
    def mode(self) -> str:
        """Default query mode of the service."""
        return self.encoder.modes[-1]

    def calibration_tasks(
        self, captions: Split | None, galleries: Sequence[str], *, first: bool = False
    ) -> list[CalibrationTask]:
        """Every task with the captions of one split.

        Args:
            captions: Split of the captions; None for tasks without captions.
            galleries: Splits of the videos that can be retrieved.
            first: Whether only the first caption of each video is used.
        """
        return [
            CalibrationTask(
                task.task_id,
                shard,
                np.array([clip.vector_id for clip in task.clips if clip.split in galleries], np.int64),
                tuple(
                    (clip.vector_id, caption)
                    for clip in task.clips
                    if clip.split == captions
                    for caption in clip.captions[: 1 if first else None]
                ),
            )
            for task, shard in zip(self.tasks, self.shards, strict=True)
        ]

    def results_with_video(self, tasks: Sequence[CalibrationTask]) -> list[LabeledResults]:
        """Labeled results of the searches in which a caption's video is not removed from the library."""
        results = label_results(self.encoder, tasks, self.profiles, mode=self.mode, prior=DEFAULT_PRIOR)
        return [result for result in results if result.present]

    def fit(self, tasks: Sequence[CalibrationTask]) -> ConfidenceModel | None:
        """Fit the confidence model as the learning job does; None with too few captions."""
        return fit_confidence(self.encoder, tasks, self.profiles, mode=self.mode, prior=DEFAULT_PRIOR)


@dataclass(frozen=True)
class ConfidenceQuality:
    """Quality of one confidence estimate of first results.

    Attributes:
        name: Name of the estimate.
        error: Expected calibration error.
        right: Area under the ROC curve, relevant against irrelevant first results.
        learned: Area under the ROC curve, captions of learned against captions of other domains.
        captions: Number of captions the model was fitted to.
    """

    name: str
    error: float
    right: float
    learned: float
    captions: int


def learn_library(
    tasks: Sequence[TaskData], backbone: Backbone, method: str, settings: Mapping[str, Any]
) -> ConfidenceLibrary:
    """Learn the tasks in order; vectors are rounded to half precision, as in the vector store."""
    learner = SequentialLearner(method, backbone, settings, round_vectors=True)
    learner.learn(tasks)
    if learner.release is None:
        raise ValueError("tasks is empty; name at least one task to learn")
    encoder = open_query_encoder(backbone, select_query_tensors(learner.release), learner.pinned)
    shards = [learner.shards[task.task_id] for task in tasks]
    return ConfidenceLibrary(tasks, shards, encoder, learner.release.profiles.to_dense())


def measure_confidence(library: ConfidenceLibrary, unlearned: Sequence[TaskData]) -> list[ConfidenceQuality]:
    """Quality of the raw score and of the confidence model, fitted to each split.

    Args:
        library: Learned tasks.
        unlearned: Tasks whose captions have no relevant video in the library.
    """
    every_split = ("train", "val", "test")
    present = library.results_with_video(library.calibration_tasks("test", every_split, first=True))
    foreign = tuple((-1, clip.captions[0]) for task in unlearned for clip in task.test)
    silent = library.calibration_tasks(None, every_split)
    absent = library.results_with_video([replace(silent[0], captions=foreign), *silent[1:]])
    fits = {
        "fitted to training captions": library.calibration_tasks("train", ("train", "val")),
        "fitted to val captions, as workers do": library.calibration_tasks("val", ("train", "val")),
        "fitted to the test captions (bound)": library.calibration_tasks("test", every_split, first=True),
    }
    scores = np.clip(_top_scores(present), 0, 1)
    qualities = [_quality("score, cut to 0..1", scores, _top_scores(absent), present, 0)]
    for name, tasks in fits.items():
        model = library.fit(tasks)
        if model is not None:
            estimates, foreign_estimates = (_top_confidences(results, model) for results in (present, absent))
            qualities.append(_quality(name, estimates, foreign_estimates, present, model.captions))
    return qualities


def _top_scores(searches: Sequence[LabeledResults]) -> Floats:
    return np.array([results.features[0, 0] for results in searches])


def _top_confidences(searches: Sequence[LabeledResults], model: ConfidenceModel) -> Floats:
    features = np.array([results.features[0] for results in searches])
    return logistic(features @ np.array(model.weights) + model.bias)


def _quality(
    name: str, estimates: Floats, foreign: Floats, present: Sequence[LabeledResults], captions: int
) -> ConfidenceQuality:
    relevant = np.array([bool(results.relevant[0]) for results in present])
    is_learned = np.concatenate([np.ones(len(estimates), np.bool_), np.zeros(len(foreign), np.bool_)])
    return ConfidenceQuality(
        name=name,
        error=reliability(estimates, relevant).error,
        right=area_under_roc(estimates, relevant),
        learned=area_under_roc(np.concatenate([estimates, foreign]), is_learned),
        captions=captions,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print the table and write confidence.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.merging.confidence_quality", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--protocol", default="world-dev", help="name or path of the protocol")
    parser.add_argument("--method", default="strata", help="name of the method")
    parser.add_argument("--learned", type=int, default=4, help="number of domains that are learned")
    parser.add_argument(
        "--unlearned", type=int, default=3, help="number of further domains, which are only used as queries"
    )
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder of rendered frames")
    parser.add_argument("--out", type=Path, required=True, help="folder for confidence.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    protocol = load_protocol(options.protocol)
    backbone = load_backbone("tiny", protocol.frames)
    tasks = prepare_tasks(protocol, backbone.spec, options.cache, tasks=options.learned + options.unlearned)
    settings = protocol.settings_of(MethodVariant.model_validate({"method": options.method}))
    library = learn_library(tasks[: options.learned], backbone, options.method, settings)
    qualities = measure_confidence(library, tasks[options.learned :])
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {
        **{name: str(value) for name, value in vars(options).items()},
        "found": [asdict(quality) for quality in qualities],
    }
    (options.out / "confidence.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    header = ["first result", "ECE", "right or wrong", "learned or not", "captions"]
    cells = [
        [q.name, f"{q.error:.3f}", f"{q.right:.3f}", f"{q.learned:.3f}", str(q.captions)] for q in qualities
    ]
    print(markdown_table(header, cells))


if __name__ == "__main__":
    main()
