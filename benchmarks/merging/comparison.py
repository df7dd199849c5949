"""How a query whose task is unknown is answered from the shards of all tasks: merging, routing, query modes, frames.

A method learns the tasks of a protocol once per seed. After the last one every way is measured on the same vectors, in
the union of the held-out videos of all tasks, with every caption of these. What a way has to learn it learns from
captions of training videos. What is fitted or chosen by likelihood or rank (temperatures, biases, a prior) takes
captions of validation videos; where a task has none, its training captions serve for that too. No query of the test is
seen by a rule before it is answered, and none beside another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks.errors import ProtocolError
from benchmarks.learning.campaign import Campaign, Run
from benchmarks.learning.method_variants import MethodVariant
from benchmarks.learning.resource_meter import ResourceMeter
from benchmarks.learning.run_results import result_path, to_json_value
from benchmarks.merging.score_calibration import (
    bank_norms,
    centroids,
    dynamic_inverted_softmax,
    fit_affine,
    fit_scales,
    hubs,
    inverted_softmax,
    keep_candidates,
    late_interaction,
    own_shard,
    prototype_weights,
    shard_posteriors,
    shard_statistics,
    standardise,
)
from models.backbones.backbone import Backbone
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from models.routing.defaults import DEFAULT_PRIOR
from models.routing.router import log_weights
from trainer.evaluation.retrieval_metrics import Recall, rank_by_id, recall_at, summarize
from trainer.methods import METHODS, Method, start_method
from trainer.task_data import Split, StoredVectors, TaskData
from trainer.training_loop import learn_task
from trainer.video_embedding import MemoryShard, embed_clips

__all__ = [
    "COSINE",
    "SERVED",
    "Comparison",
    "Learned",
    "Measure",
    "Way",
    "compare_merging",
    "learn_shards",
    "measure_merging",
    "reference_of",
]

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_PRIORS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)  # cosine per nat of the words' evidence
_BETAS = (5.0, 10.0, 20.0, 50.0, 100.0)  # inverse temperatures of query banks; 20 in QB-Norm
_TAUS = (0.01, 0.02, 0.05, 0.1, 0.2)  # temperatures of late interaction
_CANDIDATES = (1, 2, 4)  # r of hard routing
_CENTROIDS = (1, 4)  # prototypes of a task
_VECTORS = 256  # query vectors made at a time: their states stay in the processor's cache
_DEPTHS = (1, 5, 10)
_MODES = ("pinned", "mapped", "latest")  # best first, as in the service
COSINE, SERVED = "cosine", f"cosine + {DEFAULT_PRIOR} × words"
Pooling = Literal["mean", "max", "softmax"]


@runtime_checkable
class EncodesFrames(Protocol):
    """What a method offers beside its hooks where its videos can be met frame by frame."""

    def encode_frames(self, frames: Tensor) -> Tensor:
        """Unit vectors ``[n, M, dim]`` of ``uint8 [n, M, H, W, 3]``."""
        ...


# --- learning ---


@dataclass(frozen=True)
class Learned:
    """What a method left behind after the last task.

    Attributes:
        tasks: in the order in which they were learned.
        encoder: of queries.
        profiles: ``[T, V]``, the words of the tasks.
        videos: ``[n, dim]`` of every task, in the order of its clips.
        frames: ``[n, M, dim]`` likewise; None where the method has no vectors of single frames.
        settings: of the method.
    """

    tasks: Sequence[TaskData]
    encoder: QueryEncoder
    profiles: Vectors
    videos: Sequence[Vectors]
    frames: Sequence[Vectors] | None
    settings: Mapping[str, Any] = field(default_factory=dict)


def learn_shards(
    name: str,
    backbone: Backbone,
    tasks: Sequence[TaskData],
    settings: Mapping[str, Any],
    report: Callable[[str], None] = lambda line: None,
) -> Learned:
    """Learn the tasks in order, and embed the videos of each once, as :func:`benchmarks.learning.method_runner.run_method` does.

    Raises:
        ProtocolError: the method has no shards of its own tasks, or a task has nothing to calibrate with.
    """
    if METHODS[name].requires_all_videos:
        raise ProtocolError(
            f"{name} embeds everything anew with one encoder, so that there is nothing to merge"
        )
    for task in tasks:
        if not task.training_captions:
            raise ProtocolError(
                f"task {task.task_id} has no training captions, so nothing to calibrate it with"
            )
    method: Method | None = None
    release: ReleaseState | None = None
    pinned: dict[str, ReleaseState] = {}
    earlier: list[tuple[MemoryShard, Ints]] = []
    videos: list[Vectors] = []
    frames: list[Vectors] = []
    for number, task in enumerate(tasks, 1):
        method = start_method(name, backbone, settings, release)
        learn_task(method, task, StoredVectors(earlier))
        release = pinned[task.task_id] = method.release()
        videos.append(embed_clips(method.encode_videos, task.clips))
        if isinstance(method, EncodesFrames):
            frames.append(embed_clips(method.encode_frames, task.clips))
        ids = np.array([clip.vector_id for clip in task.clips], np.int64)
        trained = np.array([clip.vector_id for clip in task.train], np.int64)
        earlier.append((MemoryShard(ids, videos[-1]), trained))
        report(f"task {number} of {len(tasks)} ({task.name}) is learned")
    assert method is not None
    return Learned(
        tasks=tasks,
        encoder=method.query_encoder(pinned),
        profiles=method.profiles.to_dense(),
        videos=videos,
        frames=frames or None,
        settings=method.config.model_dump(mode="json"),
    )


# --- what meets what ---


@dataclass(frozen=True)
class Meeting:
    """Captions of one split, and the videos that they are ranked among, those of all tasks.

    Attributes:
        cosines: ``[Q, G]``, each shard's with its own query vector.
        rows: ``[Q]``, task of each caption.
        columns: ``[G]``, task of each video.
        truth: ``[Q]``, column of each caption's video.
        evidence: ``[Q, T]``, log of how much a caption sounds like each task.
        bank: ``[B, G]``, cosines of all training captions with the same videos.
        bank_rows: ``[B]``, their tasks.
    """

    cosines: Floats
    rows: Ints
    columns: Ints
    truth: Ints
    evidence: Floats
    bank: Floats
    bank_rows: Ints

    def ranks(self, scores: Floats) -> Floats:
        """``[Q]``, of the true videos; the project's tie rule."""
        return rank_by_id(scores, range(len(self.columns)), self.truth.tolist())

    def reciprocal_rank(self, scores: Floats) -> float:
        """The mean over the captions; what choices are made by."""
        return float((1 / self.ranks(scores)).mean())


@dataclass(frozen=True)
class _Captions:
    """All captions of a split, task by task, with ``rows`` and ``truth`` as in a meeting."""

    texts: list[str]
    rows: Ints
    truth: Ints
    columns: Ints
    places: list[Ints]  # of the split's videos in each task


def _captions(tasks: Sequence[TaskData], splits: Sequence[Split]) -> _Captions:
    """Those of one split of each task."""
    texts: list[str] = []
    rows: list[int] = []
    truth: list[int] = []
    columns: list[int] = []
    places: list[Ints] = []
    for position, (task, split) in enumerate(zip(tasks, splits, strict=True)):
        chosen = [(place, clip) for place, clip in enumerate(task.clips) if clip.split == split]
        for _, clip in chosen:
            texts += clip.captions
            rows += [position] * len(clip.captions)
            truth += [len(columns)] * len(clip.captions)
            columns.append(position)
        places.append(np.array([place for place, _ in chosen], np.int64))
    return _Captions(texts, np.array(rows), np.array(truth), np.array(columns), places)


class _Mode:
    """One query mode: the vectors of all captions, and their meetings with videos under any pooling."""

    def __init__(self, learned: Learned, captions: Mapping[Split, _Captions], mode: str) -> None:
        self._learned, self._captions = learned, captions
        self._texts = {split: _encoded(learned, of.texts, mode) for split, of in captions.items()}
        self._evidence = {
            split: log_weights(learned.encoder.token_presence(of.texts), learned.profiles)
            for split, of in captions.items()
        }

    def meeting(self, split: Split, tau: float | None) -> Meeting:
        """Captions and videos of a split, by late interaction at temperature ``tau`` or, without, mean-pooled."""
        of, bank = self._captions[split], self._captions["train"]
        return Meeting(
            cosines=self._cosines(split, split, tau),
            rows=of.rows,
            columns=of.columns,
            truth=of.truth,
            evidence=self._evidence[split],
            bank=self._cosines("train", split, tau),
            bank_rows=bank.rows,
        )

    def _cosines(self, texts: Split, videos: Split, tau: float | None) -> Vectors:
        asked, places = self._texts[texts], self._captions[videos].places
        parts = []
        for task, place in enumerate(places):
            if tau is None:
                parts.append(asked[:, task] @ self._learned.videos[task][place].T)
            else:
                assert self._learned.frames is not None
                parts.append(late_interaction(asked[:, task], self._learned.frames[task][place], tau))
        return np.concatenate(parts, axis=1)


def _encoded(learned: Learned, texts: Sequence[str], mode: str) -> Vectors:
    """``[n, T, dim]``."""
    names = [task.task_id for task in learned.tasks]
    size = max(1, _VECTORS // len(names))
    return _in_chunks(lambda chunk: learned.encoder.encode(chunk, names, mode), texts, size)


def _in_chunks(encode: Callable[[Sequence[str]], Vectors], texts: Sequence[str], size: int) -> Vectors:
    return np.concatenate([encode(texts[start : start + size]) for start in range(0, len(texts), size)])


# --- rules ---

Score = Callable[[Meeting], Floats]


class Candidate(NamedTuple):
    """A rule with its parameters: ``chosen`` says which of a few values, ``score`` applies it."""

    chosen: str
    score: Score


def rules(training: Meeting, tuning: Meeting) -> dict[str, list[Candidate]]:
    """Every rule with the candidates to choose from; all that is learned is learned here.

    Args:
        training: training captions and videos.
        tuning: validation captions and videos.
    """
    statistics = shard_statistics(training.cosines, training.rows, training.columns)
    temperature = fit_scales(tuning.cosines, tuning.rows, tuning.columns, tuning.truth)
    affine = fit_affine(tuning.cosines, tuning.columns, tuning.truth)
    with_words = fit_affine(tuning.cosines, tuning.columns, tuning.truth, tuning.evidence)
    banked = [(beta, own) for own in (True, False) for beta in _BETAS]
    simple: dict[str, list[Candidate]] = {
        COSINE: [Candidate("", lambda m: m.cosines)],
        "z-score": [Candidate("", lambda m: standardise(m.cosines, m.columns, *statistics))],
        "temperature": [Candidate("", lambda m: temperature(m.cosines, m.columns))],
        "temperature, softmax in the shard": [
            Candidate("", lambda m: shard_posteriors(temperature(m.cosines, m.columns), m.columns))
        ],
    }
    for name, rule in (("inverted softmax", _inverted), ("dynamic inverted softmax", _dynamic)):
        for own, bank in ((True, "own captions"), (False, "all captions")):
            simple[f"{name}, {bank}"] = [
                Candidate(f"β {beta:g}", partial(rule, beta=beta, own=of)) for beta, of in banked if of == own
            ]
    fixed = {
        f"cosine + {prior} × words": [_lifted(simple[COSINE][0], prior, tuning)]
        for prior in sorted({*_PRIORS, DEFAULT_PRIOR})
    }
    chosen = {
        f"{name} + words": [_lifted(one, prior, tuning) for one in candidates for prior in _PRIORS]
        for name, candidates in simple.items()
    }
    return {
        **simple,
        "temperature and bias": [Candidate("", lambda m: affine(m.cosines, m.columns))],
        **fixed,
        **chosen,
        "temperature and bias + words": [
            Candidate(
                f"weight {with_words.words:.2g}", lambda m: with_words(m.cosines, m.columns, m.evidence)
            )
        ],
    }


def _inverted(meeting: Meeting, beta: float, own: bool) -> Floats:
    return inverted_softmax(meeting.cosines, bank_norms(_bank(meeting, own), beta))


def _dynamic(meeting: Meeting, beta: float, own: bool) -> Floats:
    bank = _bank(meeting, own)
    return dynamic_inverted_softmax(meeting.cosines, bank_norms(bank, beta), hubs(bank))


def _bank(meeting: Meeting, own: bool) -> Floats:
    return own_shard(meeting.bank, meeting.bank_rows, meeting.columns) if own else meeting.bank


def _lifted(one: Candidate, prior: float, tuning: Meeting) -> Candidate:
    """With the words' evidence on top; the prior is in cosines, whatever the unit of the rule's scores."""
    unit = float(one.score(tuning).std() / tuning.cosines.std())
    told = ", ".join(filter(None, (one.chosen, f"prior {prior:g}")))
    return Candidate(told, lambda m: one.score(m) + prior * unit * m.evidence[:, m.columns])


def _best(candidates: Sequence[Candidate], tuning: Meeting) -> tuple[Candidate, float]:
    """The one that finds validation captions' videos best, and its mean reciprocal rank."""
    found = [tuning.reciprocal_rank(one.score(tuning)) for one in candidates]
    best = int(np.argmax(found))
    return candidates[best], found[best]


# --- measuring ---


@dataclass(frozen=True)
class Way:
    """A way to answer queries.

    Attributes:
        queries: mode.
        frames: how those of a video are pooled.
        rule: how scores are merged.
        router: what tells the candidate tasks; empty where all are searched alike.
        candidates: r, how many of them are searched first.
    """

    queries: str
    frames: Pooling
    rule: str
    router: str = ""
    candidates: int | None = None


@dataclass(frozen=True)
class Measure:
    """A way, measured on all queries of all tasks in the union gallery.

    Attributes:
        recall: shares 0..1 and ranks.
        gain: of the mean of R@1, R@5 and R@10, over that of the way that the service goes, in percent points.
        error: standard error of the gain: paired by query, the captions of a video being one sample.
        chosen: what validation captions chose.
        validation: their mean reciprocal rank; None for hard routing, in which nothing is chosen.
        accuracy: routing accuracy@r, 0..1.
    """

    way: Way
    recall: Recall
    gain: float
    error: float
    chosen: str = ""
    validation: float | None = None
    accuracy: float | None = None


def measure_merging(learned: Learned) -> list[Measure]:
    """Mean-pooled videos under every rule and router; late interaction under the to_json_value, served and best rules."""
    tuned: list[Split] = ["val" if any(c.captions for c in task.val) else "train" for task in learned.tasks]
    captions: dict[Split, _Captions] = {
        "train": _captions(learned.tasks, ["train"] * len(tuned)),
        "val": _captions(learned.tasks, tuned),
        "test": _captions(learned.tasks, ["test"] * len(tuned)),
    }
    routers = _routers(learned, captions)
    ranks: dict[Way, Floats] = {}
    told: dict[Way, dict[str, Any]] = {}
    for name in learned.encoder.modes:
        mode = _Mode(learned, captions, name)
        for frames, tau in _poolings(mode, learned.frames is not None):
            tuning, test = mode.meeting("val", tau), mode.meeting("test", tau)
            chosen = {
                rule: _best(candidates, tuning)
                for rule, candidates in rules(mode.meeting("train", tau), tuning).items()
            }
            best = max(chosen, key=lambda rule: chosen[rule][1])
            for rule in chosen if frames == "mean" else dict.fromkeys((COSINE, SERVED, best)):
                way, (one, validation) = Way(name, frames, rule), chosen[rule]
                parameters = ", ".join(filter(None, (f"τ {tau:g}" if tau else "", one.chosen)))
                ranks[way] = test.ranks(one.score(test))
                told[way] = {"chosen": parameters, "validation": validation}
            if frames != "mean":
                continue
            for (router, weights), r in product(routers.items(), _CANDIDATES):
                place = rank_by_id(weights, range(weights.shape[1]), test.rows.tolist())
                for rule in (COSINE, SERVED) if r < len(learned.tasks) else ():
                    way = Way(name, frames, rule, router, r)
                    kept = keep_candidates(chosen[rule][0].score(test), test.columns, weights, r)
                    ranks[way], told[way] = test.ranks(kept), {"accuracy": recall_at(place, r)}
    reference = _hits(ranks[reference_of(learned.encoder.modes)])
    truth = captions["test"].truth
    measures = []
    for way, found in ranks.items():
        recall = summarize(found)
        assert recall is not None
        measures.append(Measure(way, recall, *_gain(_hits(found) - reference, truth), **told[way]))
    return measures


def reference_of(modes: Container[str]) -> Way:
    """What the service does: the best mode that there is, and words on top of mean-pooled cosines."""
    return Way(next(mode for mode in _MODES if mode in modes), "mean", SERVED)


def _poolings(mode: _Mode, late: bool) -> Iterator[tuple[Pooling, float | None]]:
    """Each with its temperature; that of the softmax is chosen under the rule that is served."""
    yield "mean", None
    if not late:
        return
    yield "max", 0.0
    served = {tau: mode.meeting("val", tau) for tau in _TAUS}
    yield "softmax", max(_TAUS, key=lambda tau: served[tau].reciprocal_rank(_served(served[tau])))


def _served(meeting: Meeting) -> Floats:
    return meeting.cosines + DEFAULT_PRIOR * meeting.evidence[:, meeting.columns]


def _routers(learned: Learned, captions: Mapping[Split, _Captions]) -> dict[str, Floats]:
    """What each says of the queries, ``[Q, T]``."""
    asked, bank = captions["test"], captions["train"]
    encoder = learned.encoder
    texts, known = (_in_chunks(encoder.encode_with_backbone, of.texts, _VECTORS) for of in (asked, bank))
    routers: dict[str, Floats] = {"words": log_weights(encoder.token_presence(asked.texts), learned.profiles)}
    for k in _CENTROIDS:
        rng = np.random.default_rng(0)
        prototypes = [centroids(known[bank.rows == task], k, rng) for task in range(len(learned.tasks))]
        routers[f"{k} prototype{'s' * (k > 1)}"] = prototype_weights(texts, prototypes)
    return routers


def _hits(ranks: Floats) -> Floats:
    """``[Q]``, of each query the mean of its hits at 1, 5 and 10, in percent."""
    return 100 * (ranks[:, None] <= _DEPTHS).mean(axis=1)


def _gain(differences: Floats, videos: Ints) -> tuple[float, float]:
    """Mean over the queries, and its standard error with the queries of a video as one sample."""
    mean = differences.mean()
    together = np.bincount(videos, weights=differences - mean)
    return float(mean), float(np.sqrt((together**2).sum()) / len(differences))


# --- results ---


@dataclass(frozen=True)
class Comparison:
    """All ways with one seed.

    Attributes:
        label: of the method with its settings.
        data: identity of what it was measured on.
        vectors: that a video takes under each pooling.
        dim: of a vector, in float32.
        seconds: of learning (with embedding) and measuring.
        settings, facts: as in :class:`benchmarks.learning.run_results.RunResult`.
    """

    protocol: str
    label: str
    method: str
    seed: int
    data: str
    tasks: list[str]
    measures: list[Measure]
    vectors: dict[str, int]
    dim: int
    seconds: dict[str, list[float]]
    settings: Mapping[str, Any]
    facts: dict[str, Any]

    def best(self, poolings: Sequence[str]) -> Measure:
        """What validation captions choose of all ways with these poolings."""
        ways = [one for one in self.measures if one.validation is not None and one.way.frames in poolings]
        return max(ways, key=lambda one: one.validation or 0.0)


def compare_merging(
    campaign: Campaign, variant: MethodVariant, backbone: Backbone, seed: int, report: Callable[[str], None]
) -> Comparison:
    """Learn with one seed, measure, and write the result as JSON into ``results/`` of the campaign's folder."""
    if variant.reindex or variant.prior is not None:
        raise ProtocolError(f"{variant.label}: reindex and prior are compared here; leave them out")
    settings = {**campaign.protocol.settings_of(variant), "seed": seed}
    meter = ResourceMeter(backbone.device)
    with meter.phase("learning"):
        learned = learn_shards(variant.method, backbone, campaign.tasks, settings, report)
    with meter.phase("measuring"):
        measures = measure_merging(learned)
    frames = {"max": campaign.frames, "softmax": campaign.frames} if learned.frames is not None else {}
    comparison = Comparison(
        protocol=campaign.protocol.name,
        label=variant.label,
        method=variant.method,
        seed=seed,
        data=campaign.data,
        tasks=[task.task_id for task in campaign.tasks],
        measures=measures,
        vectors={"mean": 1, **frames},
        dim=learned.videos[0].shape[1],
        seconds=meter.seconds,
        settings=learned.settings,
        facts=campaign.facts(Run(variant, seed)),
    )
    path = result_path(campaign.out, variant.label, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(f".{os.getpid()}.staged")
    staged.write_text(json.dumps(to_json_value(comparison), allow_nan=False) + "\n", encoding="utf-8")
    staged.replace(path)
    report(f"measured in {sum(meter.seconds['measuring']):.0f} s")
    return comparison
