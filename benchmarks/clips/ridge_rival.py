"""The benchmark's rival: ridge regression from frozen image features to captions' TF-IDF vectors.

A clip's features are the mean and standard deviation, over frames, of pooled features from EfficientNet-Lite0, trained
on ImageNet. They are standardized on the training clips and mapped to the TF-IDF vector of all the clip's captions. A
query scores a clip by the cosine between its own TF-IDF vector and the clip's predicted vector, minus the mean
prediction over the domain's clips in the gallery, or over the fitted clips.

One ridge per domain is the continual form: shards never change, and a search covers all of them, each with its own
vocabulary. One ridge over all domains is the joint form, which needs all captions and features at once. Penalty and
center are selected by cross-validation on the training clips.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.clips.caption_tfidf import CaptionTfidf, caption_words
from benchmarks.clips.clip_runs import GALLERIES, ClipRun
from index.arrays import batches
from models.backbones.backbone import Backbone
from models.routing.router import log_weights
from trainer.evaluation.gallery import RankCount
from trainer.task_data import TaskData, load_frames

Floats = npt.NDArray[np.float64]

_VOCABULARY = 49408  # of the tokenizer whose routing profiles the word evidence imitates: log(1 + V·p)
_PENALTIES = (2000.0, 1000.0, 500.0, 250.0)
_FOLDS = 5
_DEPTHS = (1, 5, 10)
FEATURE_BACKBONE = "small"  # its image side is EfficientNet-Lite0, trained on ImageNet
_CLIPS = 4  # clips per forward


@dataclass(frozen=True)
class DomainFeatures:
    """Features ``[n, F]`` and captions of a domain's n clips, which of them are test clips, and the wall time."""

    name: str
    features: Floats
    captions: tuple[tuple[str, ...], ...]
    held_out: npt.NDArray[np.bool_]
    seconds: float = 0.0

    @property
    def training(self) -> npt.NDArray[np.bool_]:
        """Which clips are fitted: those with captions that are not held out, ``[n]``."""
        return ~self.held_out & np.array([bool(captions) for captions in self.captions])

    @property
    def training_texts(self) -> list[str]:
        """All captions of each fitted clip, joined."""
        return [" ".join(self.captions[row]) for row in np.flatnonzero(self.training)]

    @property
    def queried(self) -> npt.NDArray[np.int64]:
        """Rows of the held-out clips with a caption, ``[Q]``."""
        return np.flatnonzero(self.held_out & np.array([bool(captions) for captions in self.captions]))

    @property
    def queries(self) -> list[str]:
        """The first caption of each held-out clip."""
        return [self.captions[row][0] for row in self.queried]


@dataclass(frozen=True)
class RidgeSettings:
    """Weight of the squared norm, and whether predictions are centered on the gallery instead of the fitted clips."""

    penalty: float
    recentered: bool

    def __str__(self) -> str:
        return f"penalty {self.penalty:g}, centered on the {'gallery' if self.recentered else 'fitted clips'}"


class Ridge:
    """Ridge regression on standardized features ``[n, F]`` to targets ``[n, W]``; the offset is not penalized.

    It minimizes |Z B + offset - Y|² + penalty |B|² (Hoerl and Kennard, Technometrics, 1970), in the dual form if there
    are fewer clips than features.
    """

    def __init__(self, features: Floats, targets: Floats, penalty: float) -> None:
        self._mean, self._deviation = features.mean(axis=0), features.std(axis=0) + 1e-6
        self.offset: Floats = targets.mean(axis=0)
        scaled, centered = (features - self._mean) / self._deviation, targets - self.offset
        n, width = scaled.shape
        if n < width:
            dual = np.linalg.solve(scaled @ scaled.T + penalty * np.eye(n), centered)
            self.weights: Floats = scaled.T @ dual
        else:
            self.weights = np.linalg.solve(scaled.T @ scaled + penalty * np.eye(width), scaled.T @ centered)

    def __call__(self, features: Floats) -> Floats:
        """Map features ``[n, F]`` to targets ``[n, W]``."""
        return np.asarray((features - self._mean) / self._deviation @ self.weights + self.offset)


def run_ridge(
    domains: Sequence[DomainFeatures],
    settings: RidgeSettings,
    *,
    joint: bool,
    prior: float,
    label: str,
    routing: ClipRun | None = None,
) -> ClipRun:
    """Fit the ridges, and rank the held-out clips of all domains for their first captions.

    The gallery "global" adds each domain's routing evidence times ``prior``, that of the words or of a run
    (``routing``); "global_raw" does not.
    """
    distinct = [RidgeFit(part, settings) for part in ([domains] if joint else [[one] for one in domains])]
    fits = distinct * len(domains) if joint else distinct
    held_out = [fit.embed(part.features[part.held_out]) for fit, part in zip(fits, domains, strict=True)]
    evidence = _word_evidence(domains) if routing is None else _method_evidence(domains, routing)
    ranks: dict[str, dict[str, list[float]]] = {gallery: {} for gallery in GALLERIES}
    for index, (fit, domain) in enumerate(zip(fits, domains, strict=True)):
        name, targets = domain.name, np.cumsum(domain.held_out)[domain.queried] - 1
        queries = fit.encode(domain.queries)
        ranks["local"][name] = _ranks(queries @ held_out[index].T, targets)
        ranks["local_all"][name] = _ranks(queries @ fit.embed(domain.features).T, domain.queried)
        scores = [
            (queries if joint else other.encode(domain.queries)) @ vectors.T
            for other, vectors in zip(fits, held_out, strict=True)
        ]
        first = sum(len(vectors) for vectors in held_out[:index])
        ranks["global_raw"][name] = _ranks(np.concatenate(scores, axis=1), first + targets)
        weighted = [part + prior * evidence[index][:, [other]] for other, part in enumerate(scores)]
        ranks["global"][name] = _ranks(np.concatenate(weighted, axis=1), first + targets)
    return ClipRun(
        label=label,
        seed=0 if routing is None else routing.seed,
        order=tuple(domain.name for domain in domains),
        ranks=ranks,
        routed={
            domain.name: (weights.argmax(axis=1) == index).tolist()
            for index, (domain, weights) in enumerate(zip(domains, evidence, strict=True))
        },
        seconds={
            "training": [fit.seconds for fit in distinct],
            "indexing": [domain.seconds for domain in domains],
        },
        clips={domain.name: len(domain.features) for domain in domains},
        settings=str(settings),
    )


class RidgeFit:
    """Vocabulary and ridge of some domains, and the wall time of the fit."""

    def __init__(self, domains: Sequence[DomainFeatures], settings: RidgeSettings) -> None:
        began = time.perf_counter()
        texts = [text for domain in domains for text in domain.training_texts]
        self._tfidf = CaptionTfidf(texts)
        features = np.concatenate([domain.features[domain.training] for domain in domains])
        self._ridge = Ridge(features, self._tfidf.transform(texts), settings.penalty)
        self._recentered = settings.recentered
        self.seconds = time.perf_counter() - began

    def encode(self, texts: Sequence[str]) -> Floats:
        """Compute query vectors ``[n, W]``."""
        return self._tfidf.transform(texts)

    def embed(self, features: Floats) -> Floats:
        """Compute unit vectors ``[n, W]`` of a domain's clips: predictions minus their mean, or the fitted clips'."""
        predicted = self._ridge(features)
        predicted -= predicted.mean(axis=0) if self._recentered else self._ridge.offset
        return np.asarray(predicted / (np.linalg.norm(predicted, axis=1, keepdims=True) + 1e-9))


def word_evidence(domains: Sequence[DomainFeatures], texts: Sequence[str]) -> Floats:
    """Compute the log weight of each domain for each text's words, ``[n, T]``, as the router does."""
    counts = [
        Counter(
            word
            for row in np.flatnonzero(domain.training)
            for caption in domain.captions[row]
            for word in set(caption_words(caption))
        )
        for domain in domains
    ]
    columns = {word: column for column, word in enumerate(sorted(set().union(*counts)))}
    profiles = np.zeros((len(domains), len(columns)), np.float32)
    for profile, count in zip(profiles, counts, strict=True):
        for word, number in count.items():
            profile[columns[word]] = np.log1p(_VOCABULARY * number / count.total())
    presence = np.zeros((len(texts), len(columns)), np.float32)
    for row, text in zip(presence, texts, strict=True):
        row[[columns[word] for word in set(caption_words(text)) if word in columns]] = 1
    return log_weights(presence, profiles).astype(np.float64)


def _word_evidence(domains: Sequence[DomainFeatures]) -> list[Floats]:
    """Compute the word evidence of each domain's queries, ``[Q, T]`` per domain."""
    evidence = word_evidence(domains, [text for domain in domains for text in domain.queries])
    return np.split(evidence, np.cumsum([len(domain.queries) for domain in domains])[:-1])


def _method_evidence(domains: Sequence[DomainFeatures], run: ClipRun) -> list[Floats]:
    """Take the routing evidence from a method's run, with columns in the order of ``domains``."""
    columns = [run.order.index(domain.name) for domain in domains]
    return [np.array(run.evidence[domain.name])[:, columns] for domain in domains]


def _ranks(scores: Floats, truth: npt.NDArray[np.integer]) -> list[float]:
    """Rank the clips in the columns ``truth [Q]`` by scores ``[Q, G]``."""
    count = RankCount(scores[np.arange(len(truth)), truth])
    count.add(scores)
    ranks: list[float] = count.ranks().tolist()
    return ranks


def select_settings(domains: Sequence[DomainFeatures], *, joint: bool, prior: float) -> RidgeSettings:
    """Select the settings with the best mean R@1, R@5 and R@10, in the own shard and over all shards routed by words.

    Each fifth of every domain's training clips is left out once and searched with its first captions. Held-out clips
    are not read. If a domain has only one training clip, the first candidate is selected.
    """
    candidates = [RidgeSettings(penalty, center) for center in (not joint, joint) for penalty in _PENALTIES]
    folds = min(_FOLDS, *(int(domain.training.sum()) for domain in domains))
    if folds < 2:
        return candidates[0]
    rounds = [[_leave_out(domain, fold, folds) for domain in domains] for fold in range(folds)]

    def score(settings: RidgeSettings) -> float:
        runs = [run_ridge(part, settings, joint=joint, prior=prior, label="") for part in rounds]
        return statistics.fmean(
            run.recall(gallery, k) for run in runs for gallery in ("local", "global") for k in _DEPTHS
        )

    return max(candidates, key=score)


def _leave_out(domain: DomainFeatures, fold: int, folds: int) -> DomainFeatures:
    """Restrict a domain to its training clips, and hold out one in ``folds``."""
    rows: npt.NDArray[np.int64] = np.flatnonzero(domain.training)
    numbers = np.random.default_rng(0).permutation(len(rows)) % folds
    return replace(
        domain,
        features=domain.features[rows],
        captions=tuple(domain.captions[row] for row in rows),
        held_out=numbers == fold,
    )


def extract_features(
    backbone: Backbone, tasks: Sequence[TaskData], report: Callable[[str], None] = lambda line: None
) -> list[DomainFeatures]:
    """Compute features of all clips with a backbone's frozen image side."""
    domains = []
    for task in tasks:
        began = time.perf_counter()
        parts = [_frame_statistics(backbone, load_frames(chunk)) for chunk in batches(task.clips, _CLIPS)]
        domains.append(
            DomainFeatures(
                name=task.task_id,
                features=np.concatenate(parts),
                captions=tuple(clip.captions for clip in task.clips),
                held_out=np.array([clip.split == "test" for clip in task.clips]),
                seconds=time.perf_counter() - began,
            )
        )
        report(f"features of {task.name} in {domains[-1].seconds:.0f} s")
    return domains


def _frame_statistics(backbone: Backbone, frames: torch.Tensor) -> npt.NDArray[np.float64]:
    """Compute mean and standard deviation over frames, ``[n, 2F]``, for clips ``uint8 [n, M, H, W, 3]``."""
    with torch.inference_mode():
        features = backbone.embed_frames(frames)[:, :, 0].double()  # the pooled features of each frame
    return torch.cat([features.mean(dim=1), features.std(dim=1, correction=0)], dim=1).cpu().numpy()
