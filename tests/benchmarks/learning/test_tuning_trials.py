"""Tuning trials: equal numbers of trials per method, and the log of their figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.errors import ProtocolError
from benchmarks.learning.campaign import Campaign
from benchmarks.learning.protocol import Protocol, parse_variant
from benchmarks.learning.run_results import RunResult, write_result
from benchmarks.learning.tuning_trials import FACTORS, trial_variants, write_tuning_log
from benchmarks.reporting.markdown_tables import tuning_table
from benchmarks.rivals import configure
from models.backbones.backbone_loading import load_backbone
from trainer.task_data import TaskData


@pytest.fixture
def campaign(small: Protocol, tasks: list[TaskData], tmp_path: Path) -> Campaign:
    fingerprint = load_backbone("tiny", 2).fingerprint
    return Campaign(
        small, tasks, "tiny", fingerprint, 2, "cpu", tmp_path, "cinestrata bench run small --tune"
    )


def _write(campaign: Campaign, label: str, factor: float, r1: float) -> None:
    """Write a result of a trial, with the recalls r1, r1 + 0.1 and r1 + 0.3."""
    variant = trial_variants(parse_variant(label), campaign.protocol)[FACTORS.index(factor)]
    (run,) = campaign.runs([variant], 1)
    recall = {"r1": r1, "r5": r1 + 0.1, "r10": r1 + 0.3, "medr": 1.0, "meanr": 1.0, "queries": 6}
    row = {"recalls": {"latest": {"global": {}}}, "pooled": {"latest": {"global": recall}}}
    result = RunResult(
        "small", variant.label, variant.method, 0, campaign.data, campaign.identity(run), ["a"], [row]
    )
    result.facts = {"commit": "abc"}
    write_result(campaign.out, result)


def test_every_method_gets_the_same_factors_of_its_recipe(small: Protocol) -> None:
    for label in ("finetune", "strata", "ffa_tame@rank=4"):
        variant = parse_variant(label)
        recipe = configure(variant.method, small.backbone, variant.settings).model_dump()
        trials = trial_variants(variant, small)
        assert len(trials) == len(FACTORS)
        for trial, factor in zip(trials, FACTORS, strict=True):
            config = configure(trial.method, small.backbone, trial.settings).model_dump()
            changed = {name for name in recipe if config[name] != recipe[name]}
            rates = {name for name in recipe if name.endswith("learning_rate") and recipe[name]}
            assert changed == (rates if factor != 1 else set())
            assert all(config[name] == pytest.approx(factor * recipe[name]) for name in rates)


def test_closed_forms_have_no_trials(small: Protocol) -> None:
    with pytest.raises(ProtocolError, match="analytic has no learning rate"):
        trial_variants(parse_variant("analytic"), small)


def test_log_holds_all_trials_and_the_best_factor(campaign: Campaign) -> None:
    for factor, r1 in zip(FACTORS, (0.1, 0.2, 0.15), strict=True):
        _write(campaign, "finetune", factor, r1)
    _write(campaign, "strata", FACTORS[0], 0.3)
    write_tuning_log(campaign, {"finetune": trial_variants(parse_variant("finetune"), campaign.protocol)})
    log = write_tuning_log(campaign, {"strata": trial_variants(parse_variant("strata"), campaign.protocol)})
    assert json.loads((campaign.out / "tuning.json").read_text())["methods"] == log["methods"]
    scores = [trial["score"] for trial in log["methods"]["finetune"]["trials"]]
    assert scores == pytest.approx([100 * (r1 + 0.4 / 3) for r1 in (0.1, 0.2, 0.15)])
    assert log["methods"]["finetune"]["best"] == FACTORS[1]
    missing = log["methods"]["strata"]["trials"][1]
    assert (missing["score"], missing["figures"]) == (None, None)
    table = tuning_table(log)
    assert "| finetune | 23.3 | 33.3 | 28.3 | 1.0 | 3 |" in table
    assert "| strata | 43.3 | – | – | 0.3 | 3 |" in table
