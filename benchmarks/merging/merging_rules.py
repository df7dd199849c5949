"""Rules that merge the scores of different shards into one ranking, with the parameters to select from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.merging.score_calibration import (
    bank_norms,
    dynamic_inverted_softmax,
    fit_affine,
    fit_scales,
    inverted_softmax,
    own_shard,
    query_hubs,
    shard_posteriors,
    shard_statistics,
    standardize,
)
from benchmarks.merging.score_matrices import ScoreMatrix
from models.routing.defaults import DEFAULT_PRIOR

__all__ = ["COSINE", "SERVED", "RuleCandidate", "merging_rules", "select_candidate", "served_scores"]

Floats = npt.NDArray[np.floating]

COSINE, SERVED = "cosine", f"cosine + {DEFAULT_PRIOR} × words"
_PRIORS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)  # cosine per nat of routing evidence
_BETAS = (5.0, 10.0, 20.0, 50.0, 100.0)  # inverse temperatures of query banks; QB-Norm uses 20


class RuleCandidate(NamedTuple):
    """A merging rule with fixed parameters.

    Attributes:
        parameters: Readable values of the parameters; empty for a rule without any.
        score: Function from a score matrix to merged scores ``[Q, G]``.
    """

    parameters: str
    score: Callable[[ScoreMatrix], Floats]


def merging_rules(training: ScoreMatrix, tuning: ScoreMatrix) -> dict[str, list[RuleCandidate]]:
    """Fit every rule, and list its candidates by the name of the rule.

    Args:
        training: Scores of the training split.
        tuning: Scores of the validation split.
    """
    statistics = shard_statistics(training.cosines, training.rows, training.columns)
    temperature = fit_scales(tuning.cosines, tuning.rows, tuning.columns, tuning.truth)
    affine = fit_affine(tuning.cosines, tuning.columns, tuning.truth)
    with_words = fit_affine(tuning.cosines, tuning.columns, tuning.truth, tuning.evidence)
    simple: dict[str, list[RuleCandidate]] = {
        COSINE: [RuleCandidate("", lambda m: m.cosines)],
        "z-score": [RuleCandidate("", lambda m: standardize(m.cosines, m.columns, *statistics))],
        "temperature": [RuleCandidate("", lambda m: temperature(m.cosines, m.columns))],
        "temperature, softmax in the shard": [
            RuleCandidate("", lambda m: shard_posteriors(temperature(m.cosines, m.columns), m.columns))
        ],
    }
    for name, rule in (("inverted softmax", _inverted), ("dynamic inverted softmax", _dynamic)):
        for own, bank in ((True, "own captions"), (False, "all captions")):
            simple[f"{name}, {bank}"] = [
                RuleCandidate(f"β {beta:g}", partial(rule, beta=beta, own=own)) for beta in _BETAS
            ]
    fixed = {
        f"cosine + {prior} × words": [_with_evidence(simple[COSINE][0], prior, tuning)]
        for prior in sorted({*_PRIORS, DEFAULT_PRIOR})
    }
    selected = {
        f"{name} + words": [
            _with_evidence(candidate, prior, tuning) for candidate in candidates for prior in _PRIORS
        ]
        for name, candidates in simple.items()
    }
    return {
        **simple,
        "temperature and bias": [RuleCandidate("", lambda m: affine(m.cosines, m.columns))],
        **fixed,
        **selected,
        "temperature and bias + words": [
            RuleCandidate(
                f"weight {with_words.words:.2g}", lambda m: with_words(m.cosines, m.columns, m.evidence)
            )
        ],
    }


def select_candidate(candidates: Sequence[RuleCandidate], tuning: ScoreMatrix) -> tuple[RuleCandidate, float]:
    """The candidate with the highest mean reciprocal rank on the validation split, and that rank."""
    ranks = [tuning.reciprocal_rank(candidate.score(tuning)) for candidate in candidates]
    best = int(np.argmax(ranks))
    return candidates[best], ranks[best]


def served_scores(matrix: ScoreMatrix) -> Floats:
    """Scores of the service: cosines plus the default prior times the routing evidence."""
    return matrix.cosines + DEFAULT_PRIOR * matrix.evidence[:, matrix.columns]


def _inverted(matrix: ScoreMatrix, beta: float, own: bool) -> Floats:
    return inverted_softmax(matrix.cosines, bank_norms(_bank(matrix, own), beta))


def _dynamic(matrix: ScoreMatrix, beta: float, own: bool) -> Floats:
    bank = _bank(matrix, own)
    return dynamic_inverted_softmax(matrix.cosines, bank_norms(bank, beta), query_hubs(bank))


def _bank(matrix: ScoreMatrix, own: bool) -> Floats:
    return own_shard(matrix.bank, matrix.bank_rows, matrix.columns) if own else matrix.bank


def _with_evidence(candidate: RuleCandidate, prior: float, tuning: ScoreMatrix) -> RuleCandidate:
    """Add routing evidence to a rule; the prior is in cosines, whatever the unit of the rule's scores."""
    unit = float(candidate.score(tuning).std() / tuning.cosines.std())
    parameters = ", ".join(filter(None, (candidate.parameters, f"prior {prior:g}")))
    return RuleCandidate(parameters, lambda m: candidate.score(m) + prior * unit * m.evidence[:, m.columns])
