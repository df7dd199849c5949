"""Compare the routing accuracy of several kinds of evidence on the captions of FFA + TAME's published splits.

A split's file contains a list of tasks. Each task has the fields ``train`` and ``val``, objects from category to a list
of clips with ``video_id`` and, if published, ``caption``. The split named ``val`` is the test split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch.nn import functional as F

from benchmarks.clips.caption_tfidf import CaptionTfidf
from benchmarks.errors import ProtocolError, validation_summary
from benchmarks.reporting.markdown_tables import markdown_table
from index.arrays import batches
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import TextBackground
from models.encoders.tower_forward import encode_texts
from models.routing.router import CaptionEvidence, CaptionScatter
from models.routing.routing_profiles import VOCABULARY, distinct_pieces, token_profile
from trainer.evaluation.gallery import rank_by_id, recall_at

_FOLDS = 2


@dataclass(frozen=True)
class LabeledCaption:
    """A caption and its task's position."""

    text: str
    task: int
    video: str


@dataclass(frozen=True)
class CaptionFold:
    """Captions that define the tasks, and captions to route."""

    train: tuple[LabeledCaption, ...]
    test: tuple[LabeledCaption, ...]


class _Clip(BaseModel):
    model_config = ConfigDict(extra="ignore")

    video_id: str
    caption: str | None = None


class _Task(BaseModel):
    model_config = ConfigDict(extra="ignore")

    train: dict[str, list[_Clip]]
    val: dict[str, list[_Clip]]


def read_captions(path: Path) -> CaptionFold:
    """Read a file's training captions, if it has any, and test captions; raise ProtocolError for another format."""
    try:
        tasks = TypeAdapter(list[_Task]).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = validation_summary(error) if isinstance(error, ValidationError) else str(error)
        raise ProtocolError(
            f"{path} is not a list of tasks with train and val captions: {reason[:300]}"
        ) from error
    parts = [
        tuple(
            LabeledCaption(clip.caption, index, clip.video_id)
            for index, task in enumerate(tasks)
            for clips in getattr(task, split).values()
            for clip in clips
            if clip.caption
        )
        for split in ("train", "val")
    ]
    if len({caption.task for caption in parts[1]}) < 2:
        raise ProtocolError(
            f"{path} has test captions of fewer than two tasks; give a split of several tasks"
        )
    return CaptionFold(*parts)


def caption_folds(captions: CaptionFold) -> Iterator[CaptionFold]:
    """Yield the split itself, or two folds over the test captions' videos if there are no training captions."""
    if captions.train:
        yield captions
        return
    videos = sorted({(caption.task, caption.video) for caption in captions.test})
    order = np.random.default_rng(0).permutation(len(videos))
    fold_of = {videos[video]: index % _FOLDS for index, video in enumerate(order)}
    for fold in range(_FOLDS):
        inside = [fold_of[caption.task, caption.video] == fold for caption in captions.test]
        yield CaptionFold(
            tuple(c for c, chosen in zip(captions.test, inside, strict=True) if not chosen),
            tuple(c for c, chosen in zip(captions.test, inside, strict=True) if chosen),
        )


Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

PROFILE_WEIGHT = 0.5  # relative to mean captions, as in the recipe of the method analytic
_ROUTED_TASKS = (1, 2, 3)
_TEXTS = 64  # texts per forward pass


@dataclass(frozen=True)
class RoutingResult:
    """Routing accuracy@1, @2, @3 in percent on one split by kind of evidence; two folds without training captions."""

    name: str
    tasks: int
    queries: int
    has_training_captions: bool
    accuracies: dict[str, tuple[float, ...]]


class TextEncoder:
    """Tokenizes and encodes each text once."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._encoded: dict[str, tuple[Ints, Floats]] = {}

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> tuple[list[Ints], Floats]:
        """Get the distinct word pieces of each text, and unit vectors ``[n, dim]``."""
        missing = sorted(set(texts) - self._encoded.keys(), key=len)  # similar lengths need little padding
        for chunk in batches(missing, _TEXTS):
            ids = self.backbone.tokenize(chunk)
            vectors = encode_texts(self.backbone, ids)[0].double().cpu().numpy()
            self._encoded |= zip(chunk, zip(distinct_pieces(chunk), vectors, strict=True), strict=True)
        return [self._encoded[text][0] for text in texts], np.stack(
            [self._encoded[text][1] for text in texts]
        )


def compare_routing(split: str, captions: CaptionFold, encoder: TextEncoder) -> RoutingResult:
    """Route a split's test captions with each kind of evidence."""
    ranks: dict[str, list[Floats]] = {}
    for fold in caption_folds(captions):
        truth = [caption.task for caption in fold.test]
        for name, scores in _fold_evidence(fold, encoder).items():
            ranks.setdefault(name, []).append(rank_by_id(scores, range(scores.shape[1]), truth))
    tasks = len({caption.task for caption in captions.test})
    chance = {"chance": tuple(100 * m / tasks for m in _ROUTED_TASKS)}
    return RoutingResult(
        name=split,
        tasks=tasks,
        queries=len(captions.test),
        has_training_captions=bool(captions.train),
        accuracies=chance
        | {
            name: tuple(100 * recall_at(np.concatenate(parts), m) for m in _ROUTED_TASKS)
            for name, parts in ranks.items()
        },
    )


def routing_table(results: Sequence[RoutingResult]) -> str:
    """Format a Markdown table: routing accuracy@1, @2, @3 for each kind of evidence on each split."""
    header = [f"{r.name}{'' if r.has_training_captions else ' (2 folds)'}" for r in results]
    rows = [
        [name, *(" / ".join(f"{value:.1f}" for value in r.accuracies[name]) for r in results)]
        for name in results[0].accuracies
    ]
    counts = ["tasks, captions", *(f"{r.tasks}, {r.queries}" for r in results)]
    return markdown_table(["routing@1 / @2 / @3, %", *header], [*rows, counts])


def _fold_evidence(fold: CaptionFold, encoder: TextEncoder) -> dict[str, Floats]:
    """Compute the scores ``[Q, T]`` by kind of evidence."""
    labels = np.array([caption.task for caption in fold.train], np.int64)
    texts, queries = [c.text for c in fold.train], [c.text for c in fold.test]
    (tokens, vectors), (query_tokens, query_vectors) = encoder(texts), encoder(queries)
    counts = token_counts(tokens, labels, VOCABULARY)
    profiles = profile_evidence(counts, query_tokens)
    evidence = {
        "token profiles": profiles,
        "multinomial naive Bayes": multinomial_evidence(counts, query_tokens),
    }
    background = encoder.backbone.text_background
    if background is not None:
        within = caption_evidence(vectors, labels, query_vectors, background)
        evidence |= {
            "mean captions, covariance within tasks": within,
            "mean captions, covariance within tasks, and profiles": within + PROFILE_WEIGHT * profiles,
        }
    tfidf = CaptionTfidf(texts)
    evidence["logistic regression on TF-IDF, all tasks at once"] = logistic_evidence(
        tfidf.transform(texts), labels, tfidf.transform(queries)
    )
    return evidence


_SMOOTHING = 0.1  # pseudo-count of each token in multinomial naive Bayes
_INVERSE_PENALTY = 10.0  # of the logistic regression


def token_counts(tokens: Sequence[Ints], labels: Ints, vocabulary: int) -> Floats:
    """Count each task's captions that contain each token, ``[T, V]``, from the distinct pieces of each caption."""
    counts = np.zeros((int(labels.max()) + 1, vocabulary))
    for ids, label in zip(tokens, labels, strict=True):
        counts[label, ids] += 1
    return counts


def profile_evidence(counts: Floats, queries: Sequence[Ints]) -> Floats:
    """Compute the router's evidence: the sum of the routing profile over a text's tokens."""
    return _token_sums(np.stack([token_profile(row) for row in counts]), queries)


def multinomial_evidence(counts: Floats, queries: Sequence[Ints]) -> Floats:
    """Compute the log-likelihood of multinomial naive Bayes with additive smoothing."""
    smoothed = counts + _SMOOTHING
    return _token_sums(np.log(smoothed / smoothed.sum(axis=1, keepdims=True)), queries)


def caption_evidence(vectors: Floats, labels: Ints, queries: Floats, background: TextBackground) -> Floats:
    """Compute the evidence of mean captions with the covariance within tasks, as the method analytic does."""
    size = len(background.mean)
    scatter, means = CaptionScatter.empty(size), []
    for label in range(int(labels.max()) + 1):
        captions = vectors[labels == label, :size]
        scatter = scatter.add(captions)
        # The mean with one caption at the origin.
        means.append(captions.sum(axis=0) / (len(captions) + 1))
    has_mean = np.ones(len(means), np.bool_)
    evidence = CaptionEvidence(scatter, background, np.stack(means), has_mean, 1.0)
    return evidence(queries, np.arange(len(means)))


def logistic_evidence(vectors: Floats, labels: Ints, queries: Floats) -> Floats:
    """Score with a softmax regression with a quadratic penalty, fitted to all training captions at once."""
    features, targets = torch.from_numpy(vectors).float(), torch.from_numpy(labels)
    weights = torch.zeros(features.shape[1], int(labels.max()) + 1, requires_grad=True)
    offset = torch.zeros(weights.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, offset], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        entropy = F.cross_entropy(features @ weights + offset, targets, reduction="sum")
        value = (entropy + weights.square().sum() / (2 * _INVERSE_PENALTY)) / len(features)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    scores = torch.from_numpy(queries).float() @ weights.detach() + offset.detach()
    return scores.double().numpy()


def _token_sums(table: Floats, queries: Sequence[Ints]) -> Floats:
    """Sum the columns of a table ``[T, V]`` over each query's tokens, ``[Q, T]``."""
    return np.stack([table[:, ids].sum(axis=1) for ids in queries])
