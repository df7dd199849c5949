"""Tune learning rates: the same factors for every method, with a log of all trials.

Every method gets one trial per factor in :data:`FACTORS`, on a protocol whose data no reported table uses. A trial
multiplies all learning rates in the method's recipe by its factor, so that their ratios stay the same.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.errors import ProtocolError
from benchmarks.learning.campaign import Campaign, Run
from benchmarks.learning.protocol import MethodVariant, Protocol
from benchmarks.rivals import configure

FACTORS = (0.3, 1.0, 3.0)
CRITERION = "mean of R@1, R@5 and R@10 in percent, global gallery, default query mode, after the last task"
_LOG = "tuning.json"


def trial_variants(variant: MethodVariant, protocol: Protocol) -> list[MethodVariant]:
    """Create one variant per factor.

    Args:
        variant: Method variant to tune.

    Raises:
        ProtocolError: The method has no learning rate.
        MethodError: A setting is invalid.
    """
    settings = protocol.settings_of(variant)
    config = configure(variant.method, protocol.backbone, settings).model_dump()
    rates = {name: rate for name, rate in config.items() if name.endswith("learning_rate") and rate}
    if not rates:
        raise ProtocolError(f"{variant.label} has no learning rate; tune methods that take gradient steps")
    return [
        variant.model_copy(
            update={
                "label": f"{variant.label} × {factor:g}",
                "settings": {**variant.settings, **{name: rate * factor for name, rate in rates.items()}},
            }
        )
        for factor in FACTORS
    ]


def write_tuning_log(campaign: Campaign, trials: Mapping[str, Sequence[MethodVariant]]) -> dict[str, Any]:
    """Write ``tuning.json``: the figures of all trials, and each method's best factor.

    Args:
        campaign: Campaign that ran the trials.
        trials: Variants of each method, by label.

    Returns:
        The log.
    """
    path = campaign.out / _LOG
    log: dict[str, Any] = {"protocol": campaign.protocol.name, "data": campaign.data, "criterion": CRITERION}
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    methods = earlier["methods"] if earlier.get("data") == campaign.data else {}
    log |= {"factors": FACTORS, "command": campaign.command, "methods": methods}
    for label, variants in trials.items():
        entries = [
            _entry(campaign, variant, factor) for variant, factor in zip(variants, FACTORS, strict=True)
        ]
        scored = [entry for entry in entries if entry["score"] is not None]
        best = max(scored, key=lambda entry: entry["score"])["factor"] if scored else None
        methods[label] = {"trials": entries, "best": best}
    campaign.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(log, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return log


def _entry(campaign: Campaign, variant: MethodVariant, factor: float) -> dict[str, Any]:
    """Collect a trial's settings and figures; the score is None if the trial failed."""
    entry: dict[str, Any] = {"label": variant.label, "factor": factor, "settings": variant.settings}
    result = campaign.existing_result(Run(variant, 0))
    if result is None:
        return entry | {"score": None, "figures": None}
    figures = result.measures(result.modes[-1], "global")
    recalls = [value for value in (figures[name] for name in ("r1", "r5", "r10")) if value is not None]
    score = statistics.fmean(recalls) if recalls else None
    facts = {"commit": result.facts["commit"], "seconds": sum(map(sum, result.seconds.values()))}
    return entry | {"score": score, "figures": figures} | facts
