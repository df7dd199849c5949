"""Labeled searches that calibrate a release: captions and unrelated texts.

Each caption is searched three times: in the whole library, which contains its video; in the library without that
video; and in the library without its task. In the second and third search every result is wrong, however well it
matches. Unrelated texts are searched once.

A caption is scored against its own task and those with the most evidence, and the number of captions is bounded, so the
cost does not grow with the library.

Unrelated texts are sentences about what no video shows, and random letters. They complement the captions of other
domains, which a library of one domain lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids
from models.encoders.query_encoder import QueryEncoder, TokenizedText
from models.releases.release_state import CalibrationCaption
from models.routing.confidence_model import CONFIDENCE_DEPTH, answer_features, confidence_features
from models.routing.router import Router, fill_uncaptioned, log_probabilities, summarize_evidence
from models.routing.routing_profiles import RoutingProfiles
from trainer.evaluation.gallery import ShardVectors

NEAREST_VIDEOS = CONFIDENCE_DEPTH + 1  # per task and caption: one more than a list, since one may be excluded
_OTHER_TASKS = 4  # tasks with the most evidence that a caption is scored against, besides its own

SearchedLibrary = Literal["all", "without video", "without task", "unrelated"]


@dataclass(frozen=True)
class CalibrationTask:
    """A task's videos except the held-out ones, by ID, and a sample of its validation captions with their videos."""

    task: str
    shard: ShardVectors
    ids: Ids
    captions: tuple[tuple[int, str], ...]


class LabeledResults(NamedTuple):
    """Results of one search, with their relevance."""

    features: Floats  # ConfidenceModel features of each result [n, F]
    relevant: npt.NDArray[np.bool_]  # whether each result is the caption's video [n]
    caption: int
    # library that was searched: whole, without the caption's video, or without its task; or the whole library for an
    # unrelated text
    searched: SearchedLibrary
    answer: Floats  # AnswerModel features of the list
    distance: float  # gap from the best score to that of the caption's video; NaN without the video

    @property
    def present(self) -> bool:
        """Whether the searched library contains the caption's video."""
        return self.searched == "all"


class _Text(NamedTuple):
    """A text to search; ``task`` is the row of its task, or −1, and ``fitted`` has its results in that task."""

    tokens: TokenizedText
    task: int
    video: int
    fitted: CalibrationCaption | None = None


class _Nearest(NamedTuple):
    """Cosines and IDs of a task's videos nearest to a text; ``true_cosine`` is NaN if its video is elsewhere."""

    cosines: Floats
    ids: Ids
    true_cosine: float


@dataclass(frozen=True)
class _Evidence:
    """Evidence of n texts for T tasks: log-odds from words and from captions, coverage, and token counts."""

    words: Floats
    captions: Floats
    coverage: Floats
    tokens: Ids


def label_results(
    encoder: QueryEncoder,
    tasks: Sequence[CalibrationTask],
    profiles: RoutingProfiles,
    *,
    prior: float,
    fitted: Sequence[CalibrationCaption] = (),
    unrelated: Sequence[str] = (),
    report_alive: Callable[[], object] = lambda: None,
) -> Iterator[LabeledResults]:
    """Search for each caption in the whole library, without its video, and without its task.

    Args:
        profiles: Routing profiles of the T tasks, in the same order.
        prior: Cosine per unit of log-odds in routing evidence.
        fitted: Captions of training videos in these tasks, with their results in their own task.
        unrelated: Texts without a video, searched in the whole library.
    """
    row_of = {task.task: t for t, task in enumerate(tasks)}
    searched_texts = [
        *((text, t, video, None) for t, task in enumerate(tasks) for video, text in task.captions),
        *((caption.text, row_of[caption.task], caption.video, caption) for caption in fitted),
        *((text, -1, -1, None) for text in unrelated),
    ]
    tokens = encoder.tokenize([text for text, *_ in searched_texts])
    texts = [_Text(text, *found[1:]) for text, found in zip(tokens, searched_texts, strict=True)]
    if not texts or not tasks:
        return
    evidence = _compute_evidence(encoder, texts, [task.task for task in tasks], profiles)
    has_captions = profiles.has_captions
    total = evidence.words + evidence.captions
    filled = total.copy()
    fill_uncaptioned(filled, has_captions)
    is_scored = np.zeros(filled.shape, np.bool_)
    for _ in range(min(_OTHER_TASKS + 1, len(tasks))):
        likeliest = filled.argmax(axis=1)[:, None]
        np.put_along_axis(is_scored, likeliest, True, axis=1)
        np.put_along_axis(filled, likeliest, -np.inf, axis=1)
    for number, text in enumerate(texts):
        if text.task >= 0:
            is_scored[number, text.task] = True
    nearest: dict[int, dict[int, _Nearest]] = {}  # by row of a task and of a text
    for t in np.flatnonzero(is_scored.any(axis=0)).tolist():
        nearest[t] = dict(_nearest_videos(tasks[t], t, encoder, texts, np.flatnonzero(is_scored[:, t])))
        report_alive()
    everywhere = np.arange(len(tasks))
    for number, text in enumerate(texts):
        elsewhere = everywhere[everywhere != text.task]
        # Searches of the same tasks differ only in the video that they exclude.
        libraries: list[tuple[Ids, Mapping[SearchedLibrary, int | None]]] = [
            (everywhere, {"unrelated": None})
        ]
        if text.task >= 0:
            libraries = [
                (everywhere, {"all": None, "without video": text.video}),
                (elsewhere, {"without task": None}),
            ]
        for rows, searches in libraries:
            if not len(rows):
                continue
            summary = summarize_evidence(
                evidence.words[number, rows],
                evidence.captions[number, rows],
                evidence.coverage[number, rows],
                has_captions[rows],
                int(evidence.tokens[number]),
            )
            log_odds = total[number, rows]
            # Tasks without captions take the evidence of the likeliest searched task; an excluded task must not count.
            fill_uncaptioned(log_odds, has_captions[rows])
            used = np.flatnonzero(is_scored[number, rows])
            log_priors = (prior * log_probabilities(log_odds))[used].tolist()
            bonuses = dict(zip(rows[used].tolist(), log_priors, strict=True))
            scored = {t: nearest[t][number] for t in bonuses}
            all_scores = np.concatenate([near.cosines + bonuses[t] for t, near in scored.items()])
            all_ids = np.concatenate([near.ids for near in scored.values()])
            for searched, excluded in searches.items():
                scores, ids = all_scores, all_ids
                if excluded is not None:
                    scores, ids = scores[ids != excluded], ids[ids != excluded]
                order = np.argsort(-scores, kind="stable")[:CONFIDENCE_DEPTH]
                distance = float("nan")
                if searched == "all" and len(order):
                    true_score = scored[text.task].true_cosine + bonuses[text.task]
                    distance = float(np.maximum(0, scores[order[0]] - true_score))
                yield LabeledResults(
                    confidence_features(scores[order], summary.familiarity, summary.log_weight),
                    ids[order] == text.video,
                    number,
                    searched,
                    answer_features(scores[order], summary),
                    distance,
                )


def remaining_captions(
    tasks: Sequence[CalibrationTask], captions: Sequence[CalibrationCaption]
) -> list[CalibrationCaption]:
    """Select the captions whose videos still exist."""
    named = {caption.task for caption in captions}
    videos = {task.task: set(task.ids.tolist()) for task in tasks if task.task in named}
    return [caption for caption in captions if caption.video in videos.get(caption.task, ())]


def _compute_evidence(
    encoder: QueryEncoder, texts: Sequence[_Text], tasks: Sequence[str], profiles: RoutingProfiles
) -> _Evidence:
    """Compute the evidence of texts, for a training caption's own task as it was before learning the caption."""
    router, shape = Router(profiles), (len(texts), len(tasks))
    captions = encoder.routing_evidence([text.tokens for text in texts], tasks)
    evidence = _Evidence(
        words=np.empty(shape),
        captions=np.zeros(shape) if captions is None else captions.astype(np.float64),
        coverage=np.empty(shape),
        tokens=np.array([len(text.tokens.pieces) for text in texts]),
    )
    for number, text in enumerate(texts):
        evidence.words[number], known = router.sum_tokens(text.tokens.pieces)
        evidence.coverage[number] = known / max(1, evidence.tokens[number])
        if text.fitted is not None:
            evidence.words[number, text.task] = text.fitted.words
            evidence.coverage[number, text.task] = text.fitted.coverage
            evidence.captions[number, text.task] = text.fitted.captions
    return evidence


def _nearest_videos(
    task: CalibrationTask, task_row: int, encoder: QueryEncoder, texts: Sequence[_Text], rows: Ids
) -> Iterator[tuple[int, _Nearest]]:
    """Yield the given rows of ``texts``, each with its nearest videos in a task."""
    computed = []
    for row in rows.tolist():
        fitted = texts[row].fitted
        if fitted is None or texts[row].task != task_row:
            computed.append(row)
            continue
        remaining = np.isin(fitted.ids, task.ids)
        cosines, ids = np.array(fitted.cosines), np.array(fitted.ids, np.int64)
        yield row, _Nearest(cosines[remaining], ids[remaining], fitted.score)
    if not computed:
        return
    tokens = [texts[row].tokens for row in computed]
    queries = encoder.encode_pairs(tokens, [task.task] * len(tokens), encoder.modes[-1])
    cosines = (queries @ task.shard.vectors(task.ids).T).astype(np.float64)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST_VIDEOS]
    columns = {int(video): column for column, video in enumerate(task.ids)}
    for row, values, nearest in zip(computed, cosines, order, strict=True):
        column = columns.get(texts[row].video) if texts[row].task == task_row else None
        true_cosine = float("nan") if column is None else float(values[column])
        yield row, _Nearest(values[nearest], task.ids[nearest], true_cosine)


_SENTENCES = (
    "the square root of two is irrational",
    "inflation rose by half a percent in the last quarter",
    "adjectives agree with the noun in gender and number",
    "the hypothesis was rejected at the five percent level",
    "please find the invoice attached to this message",
    "our subscription plan renews automatically every year",
    "the novel was translated into eleven languages",
    "a prime number has exactly two divisors",
    "the password must contain at least one digit",
    "her dissertation discusses the philosophy of language",
    "interest is compounded monthly on the remaining balance",
    "the treaty ended a war of thirty years",
    "this medicine should not be combined with aspirin",
    "the committee postponed its decision until spring",
    "electrons occupy discrete energy levels in an atom",
    "he has been a member of the union since 1994",
    "the proof follows by induction on the length of the word",
    "the symphony is written in the key of d minor",
    "our quarterly revenue exceeded the forecast",
    "genes are transcribed into messenger molecules",
    "the deadline for applications is the end of june",
    "free will and determinism may be compatible",
    "the average temperature of the planet has increased",
    "the museum is closed on public holidays",
    "patience is a virtue that few people possess",
    "the exchange rate depends on supply and demand",
    "how do I reset my account settings",
    "what is the capital of australia",
    "best price for a flight to lisbon next week",
    "the verb stands at the end of a subordinate clause",
    "the galaxy is two million light years away",
    "the company announced a merger with its largest competitor",
    "symptoms usually disappear within a few days",
    "the census is conducted every ten years",
    "memory is freed when the last reference is dropped",
    "the poem describes a feeling of loss",
)
_RANDOM_TEXTS = 12
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@cache
def unrelated_texts() -> tuple[str, ...]:
    """Combine sentences and random letters; the result is always the same."""
    rng = np.random.default_rng(0)

    def word() -> str:
        return "".join(rng.choice(list(_LETTERS), rng.integers(3, 9)))

    random = [" ".join(word() for _ in range(rng.integers(1, 6))) for _ in range(_RANDOM_TEXTS)]
    return (*_SENTENCES, *random)
