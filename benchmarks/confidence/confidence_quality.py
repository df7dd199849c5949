"""Quality of the confidence of searches: ``python -m benchmarks.confidence.confidence_quality --out DIR``.

Domains are learned in order, without some that are left out, and the release is calibrated as in the learning job. The
library is then searched with texts that have a video, the captions of held-out videos of learned domains, and with
texts that have none: captions of the domains left out, captions of published splits, sentences about other matters,
words of the library's captions in random combinations, and random letters. In each round other domains are left out.

Two estimates of the probability of an answer are compared: the first score, and the model of the whole list. The
command writes confidence.json and prints tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.clips.clip_domains import read_clip_domains
from benchmarks.confidence.absent_texts import SENTENCES, random_letters, word_salad
from benchmarks.learning.output_memory import remember_outputs
from benchmarks.learning.protocol import MethodVariant, load_protocol
from benchmarks.learning.sequential_learning import SequentialLearner
from benchmarks.learning.task_preparation import prepare_source_tasks, prepare_tasks
from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.routing.caption_splits import read_captions
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.encoders.encoder_registry import open_query_encoder, select_query_tensors
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import CalibrationCaption
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import CONFIDENCE_DEPTH, ConfidenceModel, logistic
from trainer.evaluation.calibration_captions import cross_fit, limit_captions
from trainer.evaluation.calibration_searches import (
    CalibrationTask,
    LabeledResults,
    label_results,
    unrelated_texts,
)
from trainer.evaluation.confidence_fitting import MAX_CAPTIONS, area_under_roc, fit_confidence, reliability
from trainer.task_data import TaskData
from trainer.video_embedding import MemoryShard

Floats = npt.NDArray[np.floating]
Split = Literal["train", "val", "test"]
_CACHE = Path("cinestrata-data/bench/frames")
_KEPT = 0.95  # share of the texts with a video whose answer is kept
_TEXTS = 100  # of each kind without a video, per round
_EVERY_SPLIT: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True)
class ConfidenceLibrary:
    """Learned tasks with their shards, in memory.

    Attributes:
        tasks: Tasks in the order of learning.
        shards: Shard of each task.
        encoder: Query encoder over all shards.
        profiles: Routing profiles ``[T, V]``.
        fitted: Captions of training videos, with their results before they were learned.
    """

    tasks: Sequence[TaskData]
    shards: Sequence[MemoryShard]
    encoder: QueryEncoder
    profiles: npt.NDArray[np.float32]
    fitted: tuple[CalibrationCaption, ...] = ()

    def calibration_tasks(self, captions: Split, galleries: Sequence[Split]) -> list[CalibrationTask]:
        """Every task with the captions of one split.

        Args:
            galleries: Splits of the videos that can be retrieved.
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
                    for caption in clip.captions
                ),
            )
            for task, shard in zip(self.tasks, self.shards, strict=True)
        ]

    def fit(self) -> ConfidenceModel | None:
        """Fit the confidence model as the learning job does; None with too few captions."""
        return fit_confidence(
            self.encoder,
            self.calibration_tasks("val", ("train", "val")),
            self.profiles,
            prior=DEFAULT_PRIOR,
            fitted=self.fitted,
            unrelated=unrelated_texts(),
        )


@dataclass(frozen=True)
class ConfidenceRound:
    """Searches of one library with its confidence model.

    Attributes:
        model: Confidence model of the release.
        good: Searches for texts with a video in the library.
        absent: Searches for texts without a video, by kind.
    """

    model: ConfidenceModel
    good: Sequence[LabeledResults]
    absent: Mapping[str, Sequence[LabeledResults]]


@dataclass(frozen=True)
class AnswerQuality:
    """Quality of one estimate of the probability that a library contains a described video.

    Attributes:
        name: Name of the estimate.
        error: Expected calibration error over texts with a video, which have half of the weight, and texts without, all
            kinds of which have equal weight.
        area: Area under the ROC curve of texts with a video against captions of domains left out.
        refused: Share of the texts refused at the value that keeps 95 % of the texts with a video, by kind.
        kept: Share of the texts with a video that the threshold of the release keeps; None without a threshold.
        refused_by_release: Share of the texts that the threshold of the release refuses, by kind.
    """

    name: str
    error: float
    area: float
    refused: Mapping[str, float]
    kept: float | None = None
    refused_by_release: Mapping[str, float] = field(default_factory=dict)


def learn_library(
    tasks: Sequence[TaskData], backbone: Backbone, method: str, settings: Mapping[str, Any]
) -> ConfidenceLibrary:
    """Learn the tasks in order; vectors are rounded to half precision, as in the vector store."""
    learner = SequentialLearner(method, backbone, settings, round_vectors=True)
    fitted: tuple[CalibrationCaption, ...] = ()
    for task in tasks:
        learner.learn([task])
        assert learner.method is not None
        encoder = learner.query_encoder()
        new = cross_fit(learner.method, task, encoder, learner.pinned)
        fitted = limit_captions([*fitted, *new], MAX_CAPTIONS)
    if learner.release is None:
        raise ValueError("tasks is empty; name at least one task to learn")
    encoder = open_query_encoder(backbone, select_query_tensors(learner.release), learner.pinned)
    shards = [learner.shards[task.task_id] for task in tasks]
    return ConfidenceLibrary(tasks, shards, encoder, learner.release.profiles.to_dense(), fitted)


def search_library(
    library: ConfidenceLibrary,
    left_out: Sequence[TaskData],
    further: Mapping[str, Sequence[str]],
    seed: int = 0,
) -> ConfidenceRound | None:
    """Search a library with texts of all kinds; None if too few captions calibrate it.

    Args:
        library: Learned tasks.
        left_out: Tasks whose captions have no video in the library.
        further: Further texts without a video, by kind.
        seed: Seed of the generated texts.
    """
    model = library.fit()
    if model is None:
        return None
    captions = [text for task in library.tasks for text in task.training_captions]
    kinds = {
        "captions of domains left out": [
            text for task in left_out for clip in task.test for text in clip.captions
        ],
        **further,
        "other sentences": list(SENTENCES),
        "words in random combinations": word_salad(captions, _TEXTS, seed),
        "random letters": random_letters(_TEXTS, seed),
    }
    texts = [(kind, text) for kind, group in kinds.items() for text in group]
    searches = list(
        label_results(
            library.encoder,
            library.calibration_tasks("test", _EVERY_SPLIT),
            library.profiles,
            prior=DEFAULT_PRIOR,
            unrelated=[text for _, text in texts],
        )
    )
    unrelated = [search for search in searches if search.searched == "unrelated"]
    return ConfidenceRound(
        model,
        [search for search in searches if search.searched == "all"],
        {
            kind: [s for s, (k, _) in zip(unrelated, texts, strict=True) if k == kind]
            for kind in kinds
            if kinds[kind]
        },
    )


def measure_answers(rounds: Sequence[ConfidenceRound]) -> list[AnswerQuality]:
    """Quality of each estimate of the probability of an answer, over the searches of all rounds."""
    estimates = {
        "first score": _first_score,
        "answer model": answer_confidences,
    }
    qualities = []
    kinds = list(rounds[0].absent)
    for name, estimate in estimates.items():
        good = np.concatenate([estimate(part.model, part.good) for part in rounds])
        absent = {kind: np.concatenate([estimate(p.model, p.absent[kind]) for p in rounds]) for kind in kinds}
        bar = float(np.quantile(good, 1 - _KEPT))
        parts = [good, *absent.values()]
        shares = [0.5, *[0.5 / len(kinds)] * len(kinds)]
        counts = np.concatenate(
            [np.full(len(v), share / len(v)) for v, share in zip(parts, shares, strict=True)]
        )
        every = np.concatenate(parts)
        has_video = np.arange(len(every)) < len(good)
        learned = np.concatenate([good, absent[kinds[0]]])
        by_release: dict[str, Any] = {}
        if name == "answer model":
            kept = [estimate(p.model, p.good) >= _threshold(p.model) for p in rounds]
            by_release["kept"] = float(np.concatenate(kept).mean())
            by_release["refused_by_release"] = {
                kind: float(
                    np.concatenate(
                        [estimate(p.model, p.absent[kind]) < _threshold(p.model) for p in rounds]
                    ).mean()
                )
                for kind in kinds
            }
        qualities.append(
            AnswerQuality(
                name,
                reliability(np.clip(every, 0, 1), has_video, counts=counts).error,
                area_under_roc(learned, has_video[: len(learned)]),
                {kind: float((values < bar).mean()) for kind, values in absent.items()},
                **by_release,
            )
        )
    return qualities


def measure_results(rounds: Sequence[ConfidenceRound]) -> dict[str, float]:
    """Quality of the confidence of single results and of the end of the answer, over texts with a video."""
    searches = [(part.model, search) for part in rounds for search in part.good]
    firsts = np.array([_result_confidences(model, search)[0] for model, search in searches])
    relevant = np.array([bool(search.relevant[0]) for _, search in searches])
    reach = [model.answer.reach if model.answer else np.inf for model, _ in searches]
    ranks = [int(np.flatnonzero(s.relevant)[0]) + 1 if s.relevant.any() else 99 for _, s in searches]
    sizes = [
        int((s.features[:, 0] >= s.features[0, 0] - limit).sum())
        for (_, s), limit in zip(searches, reach, strict=True)
    ]
    return {
        "texts": len(searches),
        "R@1": float(np.mean([rank == 1 for rank in ranks])),
        "R@10": float(np.mean([rank <= CONFIDENCE_DEPTH for rank in ranks])),
        "ECE of the first result": reliability(firsts, relevant).error,
        "AUROC of the first result": area_under_roc(firsts, relevant),
        "video within reach": float(
            np.mean([s.distance <= limit for (_, s), limit in zip(searches, reach, strict=True)])
        ),
        "results within reach, of ten": float(np.mean(sizes)),
    }


def _first_score(model: ConfidenceModel, searches: Sequence[LabeledResults]) -> Floats:
    return np.array([search.features[0, 0] for search in searches])


def answer_confidences(model: ConfidenceModel, searches: Sequence[LabeledResults]) -> Floats:
    """Confidence of the response of each search; the model has one for responses."""
    assert model.answer is not None
    features = np.array([search.answer for search in searches])
    return logistic(features @ np.array(model.answer.weights) + model.answer.bias)


def _threshold(model: ConfidenceModel) -> float:
    assert model.answer is not None
    return model.answer.threshold


def _result_confidences(model: ConfidenceModel, search: LabeledResults) -> Floats:
    return logistic(search.features @ np.array(model.weights) + model.bias)


def _prepare(options: argparse.Namespace) -> tuple[list[TaskData], Backbone, Mapping[str, Any]]:
    """Tasks with their frames, backbone, and settings of the method."""
    if options.clips:
        backbone = load_backbone(options.backbone)
        remember_outputs(backbone, options.cache)
        domains = [domain for folder in options.clips for domain in read_clip_domains(folder)]
        spec = frame_spec(options.backbone, None)
        return prepare_source_tasks(domains, spec, options.cache), backbone, {}
    protocol = load_protocol(options.protocol)
    backbone = load_backbone(options.backbone, protocol.frames)
    tasks = prepare_tasks(protocol, backbone.spec, options.cache, tasks=options.tasks)
    return tasks, backbone, protocol.settings_of(MethodVariant.model_validate({"method": options.method}))


def _run_rounds(options: argparse.Namespace) -> Iterator[ConfidenceRound]:
    tasks, backbone, settings = _prepare(options)
    published: dict[str, list[str]] = {}
    for file in options.published:
        texts = [caption.text for caption in read_captions(file).test]
        chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:_TEXTS])
        published[f"captions of {file.stem}"] = [texts[row] for row in chosen]
    for number in range(options.rounds):
        learned = [task for place, task in enumerate(tasks) if place % options.parts != number]
        left_out = [task for place, task in enumerate(tasks) if place % options.parts == number]
        library = learn_library(learned, backbone, options.method, settings)
        found = search_library(library, left_out, published, number)
        if found is not None:
            yield found


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print the tables and write confidence.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.confidence.confidence_quality", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--protocol", default="world-dev", help="name or path of the protocol")
    parser.add_argument(
        "--clips", type=Path, nargs="*", help="folders of domains of clips, in place of a protocol"
    )
    parser.add_argument("--published", type=Path, nargs="*", default=[], help="published splits as JSON")
    parser.add_argument("--backbone", default="tiny", help="name of the backbone")
    parser.add_argument("--method", default="strata", help="name of the method")
    parser.add_argument("--tasks", type=int, help="number of domains of the protocol")
    parser.add_argument(
        "--parts", type=int, default=4, help="one of this many parts of the domains is left out"
    )
    parser.add_argument("--rounds", type=int, default=1, help="number of parts that are left out in turn")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder of frames")
    parser.add_argument("--out", type=Path, required=True, help="folder for confidence.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rounds = list(_run_rounds(options))
    answers, results = measure_answers(rounds), measure_results(rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {
        **{name: str(value) for name, value in vars(options).items()},
        "models": [part.model.to_json() for part in rounds],
        "answers": [asdict(quality) for quality in answers],
        "results": results,
    }
    (options.out / "confidence.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    kinds = list(answers[0].refused)
    rows = [
        [q.name, f"{q.error:.3f}", f"{q.area:.3f}", *(f"{q.refused[kind]:.2f}" for kind in kinds)]
        for q in answers
    ]
    model = answers[-1]
    rows.append(
        [
            f"answer model, threshold of the release (keeps {model.kept:.3f})",
            "",
            "",
            *(f"{model.refused_by_release[kind]:.2f}" for kind in kinds),
        ]
    )
    print(markdown_table(["answer", "ECE", "AUROC", *kinds], rows))
    print(
        markdown_table(
            ["single results", "value"], [[name, f"{value:.3f}"] for name, value in results.items()]
        )
    )


if __name__ == "__main__":
    main()
