"""Effect of the calibration of an append: ``python -m benchmarks.merging.append_calibration --clips DIR --out DIR``.

Each domain of clips is divided at random: videos that are learned, videos that are appended with their captions, and
videos that are appended without captions. Two confidence models are compared in the library with all of these videos:
that of the release, from before the append, and that which the append fits again. Both are measured with the captions
of the videos without captions, which neither the encoder, nor a routing profile, nor a model has seen, and with texts
that have no video in the library.

With ``--foreign``, every second domain is not learned; its videos are appended to the domain before it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import torch

from benchmarks.clips.clip_domains import read_clip_domains
from benchmarks.learning.task_preparation import prepare_source_tasks
from benchmarks.merging.confidence_quality import answer_confidences, remember_features
from benchmarks.merging.query_texts import SENTENCES, random_letters, word_salad
from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.routing.caption_splits import read_captions
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders.query_encoder import QueryEncoder
from models.releases.calibration_captions import CalibrationCaption
from models.releases.release_state import ReleaseState
from models.routing.answer_model import logistic
from models.routing.confidence_model import ConfidenceModel
from models.routing.defaults import DEFAULT_PRIOR
from trainer.evaluation.appended_calibration import calibrate_appended
from trainer.evaluation.calibration_searches import CalibrationTask, LabeledResults, label_results
from trainer.evaluation.confidence_fitting import MAX_CAPTIONS
from trainer.evaluation.cross_fitting import cross_fit, limit_captions
from trainer.evaluation.reliability import reliability
from trainer.published_library import Library
from trainer.release_calibration import AppendedCaptions, fit_library_confidence
from trainer.sequential_learning import SequentialLearner
from trainer.task_data import Clip, TaskData, vector_ids
from trainer.video_embedding import MemoryShard

__all__ = ["CalibrationQuality", "GrowingDomain", "divide_domains", "main", "measure_append_calibration"]

_CACHE = Path("cinestrata-data/bench/frames")
_LEARNED, _CAPTIONED = 0.4, 0.7  # bounds of the shares that are learned, and appended with captions
_TEXTS = 100  # of each kind without a video, per split


@dataclass(frozen=True)
class GrowingDomain:
    """A domain before and after an append.

    Attributes:
        learned: Task with the learned videos.
        appended: Videos that are appended with their captions.
        held_out: Videos that are appended without captions.
    """

    learned: TaskData
    appended: tuple[Clip, ...]
    held_out: tuple[Clip, ...]

    @property
    def grown(self) -> TaskData:
        """The task with all videos."""
        return replace(self.learned, clips=(*self.learned.clips, *self.appended, *self.held_out))


@dataclass(frozen=True)
class CalibrationQuality:
    """Quality of a confidence model.

    Attributes:
        model: ``release``: fitted before the append; ``append``: fitted again with it.
        captions: Number of captions with a video that were searched.
        result_error: Expected calibration error of the confidence of the first result.
        result_brier: Mean squared error of this confidence.
        answer_error: Expected calibration error of the confidence of the response, over texts with and without a
            video; both have half of the weight, and all kinds of texts without have equal weight.
        answer_brier: Mean squared error of this confidence, with these weights.
        refused: Share of the captions with a video that the threshold of the model refuses.
        refused_absent: Share of the texts without a video that it refuses, by kind.
        within_reach: Share of the described videos that belong to the answer.
        refused_before: Of the model of the release: share of the texts without a video that it refuses in the library
            before the append, by kind.
    """

    model: str
    captions: int
    result_error: float
    result_brier: float
    answer_error: float
    answer_brier: float
    refused: float
    refused_absent: Mapping[str, float]
    within_reach: float
    refused_before: Mapping[str, float] = field(default_factory=dict)


class _MemoryLibrary:
    """Shards of tasks that are not published."""

    def __init__(self, shards: Mapping[str, MemoryShard]) -> None:
        self._shards = shards

    def shard(self, task: str) -> MemoryShard:
        return self._shards[task]


def divide_domains(tasks: Sequence[TaskData], seed: int, *, foreign: bool = False) -> list[GrowingDomain]:
    """Divide the videos of domains at random.

    Args:
        tasks: The domains.
        seed: Seed of the split.
        foreign: Whether the videos of every second domain are appended to the domain before it, which is learned with
            all of its videos. A last domain without a successor is left out.
    """
    rng = np.random.default_rng(seed)
    domains = []
    if foreign:
        for task, other in zip(tasks[::2], tasks[1::2], strict=False):
            clips = _shuffled(other.clips, rng)
            half = len(clips) // 2
            domains.append(_growing_domain(task, task.clips, clips[:half], clips[half:]))
        return domains
    for task in tasks:
        clips = _shuffled(task.clips, rng)
        learned, captioned = (round(bound * len(clips)) for bound in (_LEARNED, _CAPTIONED))
        domains.append(_growing_domain(task, clips[:learned], clips[learned:captioned], clips[captioned:]))
    return domains


def _shuffled(clips: Sequence[Clip], rng: np.random.Generator) -> list[Clip]:
    return [clips[row] for row in rng.permutation(len(clips))]


def _growing_domain(
    task: TaskData, learned: Iterable[Clip], appended: Iterable[Clip], held_out: Iterable[Clip]
) -> GrowingDomain:
    return GrowingDomain(
        replace(task, clips=tuple(replace(clip, split="train") for clip in learned)),
        tuple(replace(clip, split=None) for clip in appended),
        tuple(replace(clip, split=None) for clip in held_out),
    )


def measure_append_calibration(
    domains: Sequence[GrowingDomain],
    backbone: Backbone,
    method: str,
    absent: Mapping[str, Sequence[str]],
    seed: int,
) -> list[CalibrationQuality]:
    """Learn the domains in order, append to all of them, and measure both confidence models.

    Args:
        domains: The domains.
        backbone: Backbone of the library.
        method: Name of the method.
        absent: Texts without a video, by kind; texts of the library's words and random texts are added.
        seed: Seed of the added texts.

    Returns:
        The quality of both models; empty if the captions are too few for one of them.
    """
    learner = SequentialLearner(method, backbone, {}, round_vectors=True)
    state, encoder = _learn(learner, domains), learner.query_encoder()
    shards = {domain.learned.task_id: _learned_part(learner, domain.learned) for domain in domains}
    appended = {
        domain.learned.task_id: AppendedCaptions(domain.learned.training_captions, _captions(domain.appended))
        for domain in domains
    }
    release = _fit_confidence(encoder, state, shards, {})
    append = _fit_confidence(encoder, state, learner.shards, appended)
    if release is None or append is None:
        return []
    words = [text for domain in domains for text in domain.learned.training_captions]
    kinds = {
        **absent,
        "other sentences": list(SENTENCES),
        "words in random combinations": word_salad(words, _TEXTS, seed),
        "random letters": random_letters(_TEXTS, seed),
    }
    before = [CalibrationTask(task, shard, shard.ids, ()) for task, shard in shards.items()]
    after = [
        CalibrationTask(task, shard, shard.ids, tuple(_captions(domain.held_out)))
        for (task, shard), domain in zip(learner.shards.items(), domains, strict=True)
    ]
    _, absent_before = _search(encoder, before, state.profiles.to_dense(), kinds)
    profiles = _profiles_with_appends(encoder, state, learner.shards, appended)
    found, absent_after = _search(encoder, after, profiles, kinds)
    return [
        replace(
            _measure("release", release, found, absent_after),
            refused_before=_refused(release, absent_before),
        ),
        _measure("append", append, found, absent_after),
    ]


def _learn(learner: SequentialLearner, domains: Sequence[GrowingDomain]) -> ReleaseState:
    """Learn the domains and index all of their videos; returns the last release with its calibration captions."""
    captions: tuple[CalibrationCaption, ...] = ()
    for domain in domains:
        learner.train(domain.learned)
        learner.index(domain.grown)
        assert learner.method is not None
        encoder = learner.query_encoder()
        new = cross_fit(learner.method, domain.learned, encoder, learner.pinned, encoder.modes[-1])
        captions = limit_captions([*captions, *new], MAX_CAPTIONS)
    assert learner.release is not None
    return replace(learner.release, calibration=captions)


def _learned_part(learner: SequentialLearner, task: TaskData) -> MemoryShard:
    """Shard of a task without the appended videos."""
    ids = vector_ids(task.clips)
    return MemoryShard(ids, learner.shards[task.task_id].vectors(ids))


def _fit_confidence(
    encoder: QueryEncoder,
    state: ReleaseState,
    shards: Mapping[str, MemoryShard],
    appended: Mapping[str, AppendedCaptions],
) -> ConfidenceModel | None:
    """Confidence model of a library; None if it has too few captions."""
    newest = list(shards)[-1]
    return fit_library_confidence(
        encoder,
        cast(Library, _MemoryLibrary(shards)),
        state,
        (newest, shards[newest]),
        {},
        {},
        appended,
        prior=DEFAULT_PRIOR,
        mode=encoder.modes[-1],
    )


def _profiles_with_appends(
    encoder: QueryEncoder,
    state: ReleaseState,
    shards: Mapping[str, MemoryShard],
    appended: Mapping[str, AppendedCaptions],
) -> np.ndarray:
    """Routing profiles of the domains after their appends, ``[T, V]``."""
    return np.stack(
        [
            calibrate_appended(
                encoder,
                task,
                shards[task],
                shards[task].ids,
                captions.learned,
                captions.appended,
                vocabulary=state.profiles.vocabulary,
                mode=encoder.modes[-1],
            ).profile
            for task, captions in appended.items()
        ]
    )


def _search(
    encoder: QueryEncoder,
    tasks: Sequence[CalibrationTask],
    profiles: np.ndarray,
    absent: Mapping[str, Sequence[str]],
) -> tuple[list[LabeledResults], dict[str, list[LabeledResults]]]:
    """Searches of the captions of the tasks, and of texts without a video, by kind."""
    texts = [text for group in absent.values() for text in group]
    found = list(
        label_results(encoder, tasks, profiles, mode=encoder.modes[-1], prior=DEFAULT_PRIOR, unrelated=texts)
    )
    unrelated = iter([result for result in found if result.searched == "unrelated"])
    by_kind = {kind: list(islice(unrelated, len(group))) for kind, group in absent.items()}
    return [result for result in found if result.searched == "all"], by_kind


def _captions(clips: Sequence[Clip]) -> list[tuple[int, str]]:
    return [(clip.vector_id, caption) for clip in clips for caption in clip.captions]


def _measure(
    name: str,
    model: ConfidenceModel,
    good: Sequence[LabeledResults],
    absent: Mapping[str, Sequence[LabeledResults]],
) -> CalibrationQuality:
    assert model.answer is not None
    firsts = np.array([search.features[0] for search in good]) @ np.array(model.weights) + model.bias
    relevant = np.array([bool(search.relevant[0]) for search in good])
    results = reliability(logistic(firsts), relevant)
    parts = [
        answer_confidences(model, good),
        *(answer_confidences(model, searches) for searches in absent.values()),
    ]
    shares = [0.5, *[0.5 / len(absent)] * len(absent)]
    counts = np.concatenate([np.full(len(p), s / len(p)) for p, s in zip(parts, shares, strict=True)])
    every = np.concatenate(parts)
    response = reliability(every, np.arange(len(every)) < len(good), counts=counts)
    return CalibrationQuality(
        model=name,
        captions=len(good),
        result_error=results.error,
        result_brier=results.brier,
        answer_error=response.error,
        answer_brier=response.brier,
        refused=float((parts[0] < model.answer.threshold).mean()),
        refused_absent=_refused(model, absent),
        within_reach=float(np.mean([search.distance <= model.answer.reach for search in good])),
    )


def _refused(model: ConfidenceModel, absent: Mapping[str, Sequence[LabeledResults]]) -> dict[str, float]:
    assert model.answer is not None
    threshold = model.answer.threshold
    return {
        kind: float((answer_confidences(model, searches) < threshold).mean())
        for kind, searches in absent.items()
    }


def _rows(pairs: Sequence[Sequence[CalibrationQuality]]) -> list[list[str]]:
    """Means over the splits, and the mean and standard error of the paired difference."""

    def values(quality: CalibrationQuality) -> dict[str, float]:
        fields = asdict(quality)
        by_kind = fields.pop("refused_absent")
        before = fields.pop("refused_before")
        del fields["model"], fields["captions"]
        return {
            **fields,
            **{f"refused: {kind}": share for kind, share in by_kind.items()},
            **{f"refused before the append: {kind}": share for kind, share in before.items()},
        }

    release, append = ([values(pair[place]) for pair in pairs] for place in (0, 1))
    rows = []
    for name in release[0]:
        former = np.array([split[name] for split in release])
        if name not in append[0]:
            rows.append([name, f"{former.mean():.3f}", "", ""])
            continue
        again = np.array([split[name] for split in append])
        change = again - former
        error = change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else float("nan")
        rows.append(
            [name, f"{former.mean():.3f}", f"{again.mean():.3f}", f"{change.mean():+.3f} ± {error:.3f}"]
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print the table and write append_calibration.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.merging.append_calibration", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--clips", type=Path, required=True, help="folder of domains of clips")
    parser.add_argument("--published", type=Path, nargs="*", default=[], help="published splits as JSON")
    parser.add_argument("--backbone", default="tiny", help="name of the backbone")
    parser.add_argument("--method", default="analytic", help="name of the method")
    parser.add_argument("--splits", type=int, default=5, help="number of random splits")
    parser.add_argument("--foreign", action="store_true", help="append the videos of other domains")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder of frames")
    parser.add_argument("--out", type=Path, required=True, help="folder for append_calibration.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    backbone = load_backbone(options.backbone)
    remember_features(backbone)
    tasks = prepare_source_tasks(read_clip_domains(options.clips), backbone.spec, options.cache)
    absent: dict[str, list[str]] = {}
    for file in options.published:
        published = limit_captions([caption.text for caption in read_captions(file).test], _TEXTS)
        absent[f"captions of {file.stem}"] = list(published)
    pairs = []
    for seed in range(options.splits):
        domains = divide_domains(tasks, seed, foreign=options.foreign)
        pair = measure_append_calibration(domains, backbone, options.method, absent, seed)
        if pair:
            pairs.append(pair)
    if not pairs:
        parser.exit(1, "The captions of the clips are too few for a confidence model.\n")
    options.out.mkdir(parents=True, exist_ok=True)
    report = {
        "options": {name: str(value) for name, value in vars(options).items()},
        "splits": [[asdict(quality) for quality in pair] for pair in pairs],
    }
    (options.out / "append_calibration.json").write_text(
        json.dumps(report, indent=2) + "\n", encoding="utf-8"
    )
    print(f"{len(pairs)} splits, {sum(pair[0].captions for pair in pairs)} captions with a video")
    print(markdown_table(["", "release", "fitted again", "difference"], _rows(pairs)))


if __name__ == "__main__":
    main()
