"""The product's rivals on the same videos and texts, and how much of their answers and of the product's is right.

The rivals are full-text search, alone and with vectors, zero-shot, and a ridge. BM25 is that of Robertson and Zaragoza,
"The Probabilistic Relevance Framework: BM25 and Beyond" (2009), over all texts that the library stores for a video. The
convex combination is that of Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval" (TOIS 2023).
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.clips.ridge_rival import (
    FEATURE_BACKBONE,
    DomainFeatures,
    RidgeFit,
    RidgeSettings,
    extract_features,
    select_settings,
    word_evidence,
)
from benchmarks.data.frame_sources import FileFrames
from benchmarks.data.source_tasks import Progress, SourceTask, SourceVideo, Split, prepare_source_tasks
from benchmarks.learning.sequential_learning import remember_outputs
from benchmarks.queries.library_videos import Library, LibraryVideo
from benchmarks.queries.query_kinds import Query
from benchmarks.queries.served_library import DEPTH, Answer, ServedAnswers
from index.arrays import batches
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.routing import DEFAULT_PRIOR
from trainer.video_embedding import embed_clips

Floats = npt.NDArray[np.floating]

_K1, _B = 1.2, 0.75
_NO_RESULT = -np.inf
# Per cosine of the ridge, beside the product's words.
_COSINE_WEIGHTS = np.geomspace(1, 100, 13).round(1).tolist()


class Bm25:
    """BM25 over N documents: all texts of a video are one document."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(caption_words(document)) for document in documents]
        lengths = np.array([count.total() for count in counts], np.float64)
        norms = _K1 * (1 - _B + _B * lengths / max(1.0, lengths[lengths > 0].mean()))
        self._count = len(documents)
        self._postings: dict[str, tuple[list[int], list[float]]] = {}
        for row, count in enumerate(counts):
            for word, number in count.items():
                rows, weights = self._postings.setdefault(word, ([], []))
                rows.append(row)
                weights.append(number * (_K1 + 1) / (number + norms[row]))

    def __call__(self, text: str) -> Floats:
        """Score each video, ``[N]``; −∞ if it has no word of the text."""
        scores = np.zeros(self._count)
        for word in set(caption_words(text)) & self._postings.keys():
            rows, weights = self._postings[word]
            idf = np.log(1 + (self._count - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += idf * np.array(weights)
        return np.where(scores > 0, scores, _NO_RESULT)


def stored_text(video: LibraryVideo, *, with_names: bool) -> str:
    """Join all texts that the library stores for a video."""
    names = [video.name, *_metadata_texts(video.metadata)] if with_names else []
    return " ".join([*video.stored, *(text for _, text in video.timed), *names]).replace("_", " ")


def _metadata_texts(value: object) -> list[str]:
    """List the texts and numbers in metadata."""
    if isinstance(value, Mapping | list):
        members = value.values() if isinstance(value, Mapping) else value
        return [text for member in members for text in _metadata_texts(member)]
    return [] if isinstance(value, bool) or value is None else [str(value)]


def combine(full_text: Floats, visual: Floats, weight: float) -> Floats:
    """Combine two lists of scores ``[N]`` convexly; −∞ in ``visual`` means outside the gallery.

    Both are scaled to 0..1: BM25 from its theoretical minimum, 0, the other from its lowest score in the gallery.
    """
    inside = visual > _NO_RESULT
    words, similarities = np.maximum(full_text[inside], 0.0), visual[inside]
    scores = np.full(len(visual), _NO_RESULT)
    scores[inside] = weight * words / max(words.max(), 1e-9)
    scores[inside] += (1 - weight) * (similarities - similarities.min()) / max(np.ptp(similarities), 1e-9)
    return scores


@dataclass(frozen=True)
class FrozenFeatures:
    """What frozen towers compute for all videos, independent of captions and of the order of the domains."""

    ridge: Mapping[str, DomainFeatures]
    vectors: Mapping[str, Floats]
    encode: Callable[[Sequence[str]], Floats]
    engine: str


def read_features(
    library: Library, backbone: str, cache: Path, *, workers: int, progress: Progress
) -> FrozenFeatures:
    """Decode all videos, and compute what the cache lacks."""
    sources = [SourceTask(name, name, tuple(map(_source, videos))) for name, videos in library.items()]
    spec = frame_spec(backbone, None)
    rival_spec = FrameSpec(spec.frames, frame_spec(FEATURE_BACKBONE, spec.frames).size)
    tasks, rival_tasks = (
        prepare_source_tasks(sources, frames, cache, workers=workers, progress=progress)
        for frames in (spec, rival_spec)
    )
    towers = load_backbone(FEATURE_BACKBONE, spec.frames)
    ridge = {}
    for task in rival_tasks:
        names = "".join([towers.fingerprint, *(clip.frames_path.stem for clip in task.clips)])
        path = cache / f"ridge-features-{blake2b(names.encode(), digest_size=16).hexdigest()}.npy"
        if path.exists():
            ridge[task.task_id] = DomainFeatures(task.task_id, np.load(path), (), np.zeros(0, np.bool_))
        else:
            (ridge[task.task_id],) = extract_features(towers, [task])
            np.save(path, ridge[task.task_id].features)
    frozen = load_backbone(backbone)
    remember_outputs(frozen, cache)
    vectors = {
        task.task_id: embed_clips(lambda frames: encode_frames(frozen, frames)[0], task.clips)
        for task in tasks
    }

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> Floats:
        parts = [encode_texts(frozen, frozen.tokenize(batch))[0].numpy() for batch in batches(texts, 64)]
        return np.concatenate(parts)

    return FrozenFeatures(ridge, vectors, encode, frozen.engine)


def _source(video: LibraryVideo) -> SourceVideo:
    split: Split = "test" if video.is_hidden else "train"
    return SourceVideo(video.id, video.captions, split, FileFrames(video.file))


class VectorRivals:
    """The rivals that need vectors; a seed's first library fits their parameters.

    One of them is a ridge over all of a library's domains, cross-validated, with routing evidence from its words.
    """

    def __init__(self, features: FrozenFeatures) -> None:
        self._features = features
        self._fitted: dict[int, tuple[RidgeSettings, list[float]]] = {}  # and weights of the cosines, by seed

    @property
    def parameters(self) -> list[str]:
        """What was fitted for each seed, in words."""
        return [f"{ridge}, {a:g} and {b:g} nats per cosine" for ridge, (a, b) in self._fitted.values()]

    def score(
        self, seed: int, library: Library, queries: Sequence[Query], served: ServedAnswers
    ) -> dict[str, Floats]:
        """Score the videos of a library ``[Q, N]``; ``served`` has the scores of the product."""
        videos = [video for members in library.values() for video in members]
        domains = [
            replace(
                self._features.ridge[name],
                captions=tuple(video.stored for video in members),
                held_out=np.array([video.is_hidden for video in members]),
            )
            for name, members in library.items()
        ]
        texts = [query.text for query in queries]
        places = {video: index for index, video in enumerate(served.videos)}
        columns = [places[video.id] for video in videos]
        words = served.words[:, columns]
        settings, weights = self._fitted.get(seed, (None, []))
        settings = settings or select_settings(domains, joint=True, prior=DEFAULT_PRIOR)
        fit = RidgeFit(domains, settings)
        cosines = fit.encode(texts) @ np.concatenate([fit.embed(domain.features) for domain in domains]).T
        owners = np.repeat(np.arange(len(domains)), [len(domain.features) for domain in domains])
        if not weights:
            weights = fit_weights(
                queries, videos, _COSINE_WEIGHTS, lambda row, w: w * cosines[row] + words[row]
            )
            self._fitted[seed] = settings, weights
        weight = np.array([weights[half_of(query)] for query in queries])[:, None]
        vectors = np.concatenate([self._features.vectors[name] for name in library])
        uncaptioned = [not video.stored for video in videos]
        return {
            VISUAL: served.visual[:, columns],
            ZERO_SHOT: self._features.encode(texts) @ vectors.T,
            RIDGE: cosines + DEFAULT_PRIOR * word_evidence(domains, texts)[:, owners],
            WORDY_RIDGE: weight * cosines + words,
            CHANCE: np.random.default_rng(seed).random(cosines.shape) + uncaptioned,
        }


PRODUCT, FULL_TEXT, CONVEX, VISUAL, ZERO_SHOT, RIDGE, WORDY_RIDGE, CHANCE = ROWS = (
    "product as served",
    "BM25",
    "convex combination of BM25 and visual",
    "visual alone",
    "zero-shot",
    "joint ridge",
    "joint ridge, words as the product",
    "chance, uncaptioned first",
)


class Outcome(NamedTuple):
    """One query's measures in percent for one row; ``gallery``: ``all`` domains, or the ``own`` one of a caption."""

    row: str
    gallery: str
    query: Query
    values: dict[str, float]


def compare_answers(
    queries: Sequence[Query],
    videos: Sequence[LibraryVideo],
    answers: Sequence[Answer],
    scores: Mapping[str, Floats],
    weights: Sequence[float],
) -> list[Outcome]:
    """Compute the outcomes of all rows.

    Args:
        answers: The product's answers: of all domains, then of the own domains of whole captions.
        scores: The rivals' scores for each of N videos and Q queries, ``[Q, N]``. BM25 and the visual scores are fused.
        weights: Weights of BM25 in the convex combination, for each half of the videos.
    """
    answered = iter(answers[len(queries) :])
    outcomes = []
    for number, query in enumerate(queries):
        answers_by_row = {("all", PRODUCT): answers[number]}
        if query.is_caption:
            answers_by_row["own", PRODUCT] = next(answered)
        for gallery in [gallery for gallery, _ in answers_by_row]:
            inside = np.array([gallery == "all" or video.domain == query.domain for video in videos])
            listed = {row: np.where(inside, matrix[number], -np.inf) for row, matrix in scores.items()}
            if VISUAL in listed:
                listed[CONVEX] = combine(listed[FULL_TEXT], listed[VISUAL], weights[half_of(query)])
            for row, ranked in listed.items():
                answers_by_row[gallery, row] = _rival_answer(ranked, videos, is_full_text=row == FULL_TEXT)
        outcomes += [
            Outcome(row, gallery, query, _values(query, answer))
            for (gallery, row), answer in answers_by_row.items()
        ]
    return outcomes


def fit_weights(
    queries: Sequence[Query],
    videos: Sequence[LibraryVideo],
    candidates: Sequence[float],
    score: Callable[[int, float], Floats],
) -> list[float]:
    """Fit a weight for each half of the videos on the other: the best mean of all recalls over the kinds."""
    gains: dict[tuple[int, str], list[list[float]]] = {}
    for number, query in enumerate(queries):
        if query.right:
            answers = (_rival_answer(score(number, weight), videos) for weight in candidates)
            recalls = [statistics.fmean(_recalls(query, answer).values()) for answer in answers]
            gains.setdefault((1 - half_of(query), query.kind), []).append(recalls)
    kinds = [
        [np.mean(rows, axis=0) for (half, _), rows in gains.items() if half == number] for number in (0, 1)
    ]
    return [candidates[int(np.mean(means, axis=0).argmax())] if means else candidates[0] for means in kinds]


def half_of(query: Query) -> int:
    """Choose the half of the videos that a query belongs to by its first right one."""
    return hashlib.sha256(min(query.right, default="").encode()).digest()[0] % 2


def _rival_answer(scores: Floats, videos: Sequence[LibraryVideo], *, is_full_text: bool = False) -> Answer:
    """Rank the first results by score, equal ones at random; full-text search finds nothing without a word."""
    order = np.lexsort((_random_order(len(videos)), -scores))[:DEPTH]
    top = [videos[row].id for row in order if scores[row] > -np.inf]
    best = float(scores[order[0]])
    return Answer(top, bool(top) if is_full_text else None, best if top else 0.0)


@lru_cache(maxsize=8)
def _random_order(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).permutation(count)


def _values(query: Query, answer: Answer) -> dict[str, float]:
    values = _recalls(query, answer)
    if answer.matches is not None:
        values["matches" if query.right else "refused"] = 100.0 * (answer.matches == bool(query.right))
    if answer.confidence is not None:
        values["confidence"] = answer.confidence
    return values


def _recalls(query: Query, answer: Answer) -> dict[str, float]:
    if query.right and query.needs_one:
        return {f"R@{k}": 100.0 * bool(query.right & set(answer.top[:k])) for k in (1, DEPTH)}
    places = min(DEPTH, query.stored)
    right = sum(video in query.right for video in answer.top[:places])
    return {"P@min(10, R)": 100.0 * right / places} if places else {}
