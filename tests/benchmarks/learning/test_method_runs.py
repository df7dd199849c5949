"""Method runs and campaigns: measurements, joint training, re-indexing, interruption and parallel processes."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import benchmarks.learning.campaign
import benchmarks.learning.method_runner
from benchmarks.errors import ProtocolError
from benchmarks.learning.campaign import Campaign, Run
from benchmarks.learning.method_runner import RunOutcome, run_method
from benchmarks.learning.protocol import Protocol, load_protocol, parse_variant, select_variants
from benchmarks.learning.run_progress import RunProgress
from benchmarks.learning.run_results import (
    RunResult,
    read_result,
    read_results,
    result_path,
    to_json_value,
    write_result,
)
from benchmarks.rivals import start_method
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from trainer.errors import TrainingDiverged
from trainer.evaluation.rank_ledger import GALLERIES
from trainer.evaluation.recall_row import RecallRow, compute_recall
from trainer.methods import Method
from trainer.task_data import TaskData
from trainer.training_loop import learn_task
from trainer.video_embedding import embed_clips

SETTINGS = {"epochs": 2, "batch_size": 4}
SMALL_FFA = {**SETTINGS, "experts": 2, "rank": 2}
TASKS = ("night-traffic", "microscope")
PHASES = {"training", "indexing", "evaluation", "research"}  # of every task; "transfer" of all but the first


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("tiny", 2)


RunMethod = Callable[..., RunOutcome]


@pytest.fixture(scope="module")
def run(backbone: Backbone, tasks: list[TaskData]) -> RunMethod:
    """Run a method on the small tasks with seed 1; equal runs are executed once."""
    outcomes: dict[str, RunOutcome] = {}

    def run(method: str, settings: dict[str, Any] = SETTINGS, **options: Any) -> RunOutcome:
        key = repr((method, settings, options))
        if key not in outcomes:
            outcomes[key] = run_method(method, backbone, tasks, seed=1, settings=settings, **options)
        return outcomes[key]

    return run


def _result(outcome: RunOutcome, tasks: list[TaskData], method: str = "finetune") -> RunResult:
    names = [task.task_id for task in tasks]
    return RunResult("small", method, method, 0, "d", "r", names, outcome.rows, before=outcome.before)


def _local(method: Method, task: TaskData) -> float:
    """Compute R@1 in percent on a task's held-out videos with the method's current encoders."""
    encoder = method.query_encoder()
    position = [learned.task_id for learned in method.learned_tasks].index(task.task_id)
    texts = encoder.encode([clip.captions[0] for clip in task.test], [task.task_id])[:, 0]
    assert position >= 0
    ids = [clip.vector_id for clip in task.test]
    recall = compute_recall(texts, ids, embed_clips(method.encode_videos, task.test), ids)
    assert recall is not None
    return 100 * recall.r1


# --- one run ---


def test_sequential_run_fills_the_lower_triangle_of_the_matrix(
    backbone: Backbone, tasks: list[TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    states: list[str] = []
    monkeypatch.setattr(RunProgress, "update", lambda self, state: states.append(state))
    outcome = run_method(
        "ffa_tame", backbone, tasks, seed=1, settings=SMALL_FFA, report=lines.append, report_seconds=3600
    )
    result = _result(outcome, tasks)
    for mode in ("latest", "pinned"):
        for gallery in GALLERIES:
            matrix = result.matrix(mode, gallery)
            assert [[cell is None for cell in row] for row in matrix] == [[False, True], [False, False]]
    pinned = result.matrix("pinned", "local")
    assert pinned[1][0] == pinned[0][0]
    assert outcome.steps == [4, 4]  # 4 videos with 2 captions in batches of 4, twice
    assert [len(losses) for losses in outcome.losses] == [2, 2]
    assert (outcome.settings["seed"], outcome.settings["rank"]) == (1, 2)
    names = ["task 1 of 2 (night-traffic)", "task 2 of 2 (microscope)"]
    assert [line.split(" in ")[0] for line in lines] == names
    for name in names:
        trained = [f"{name}: training, step {step} of 4" for step in range(1, 5)]
        stages = [state for state in states if state.startswith(name)]
        start = stages.index(f"{name}: training")
        assert stages[start + 1 : start + 6] == [*trained, f"{name}: indexing"]
        assert f"{name}: evaluation, 100%" in stages


@pytest.mark.slow
def test_run_measures_time_and_memory_by_phase_and_task(
    run: RunMethod, backbone: Backbone, tasks: list[TaskData]
) -> None:
    meter = run("finetune").meter
    assert set(meter.seconds) == set(meter.peak_mib) == {*PHASES, "transfer"}
    assert {phase: len(values) for phase, values in meter.seconds.items()} == {
        **dict.fromkeys(PHASES, 2),
        "transfer": 1,
    }
    assert all(value > 0 for values in meter.seconds.values() for value in values)
    assert all(50 < value < 100_000 for values in meter.peak_mib.values() for value in values)


def test_peak_memory_is_that_of_the_phase() -> None:
    from benchmarks.learning.run_costs import ResourceMeter

    meter = ResourceMeter(torch.device("cpu"))
    if not meter.memory.startswith("VmHWM"):
        pytest.skip("the kernel does not reset its high-water mark here")
    for name in ("small", "large", "small"):
        with meter.phase(name):
            np.ones((300 if name == "large" else 1) * 1024**2, np.uint8)  # written, and freed at once
    before, after = meter.peak_mib["small"]
    assert meter.peak_mib["large"][0] > before + 250
    assert after < before + 100


@pytest.mark.slow
def test_joint_training_has_one_row_and_no_forgetting(run: RunMethod, tasks: list[TaskData]) -> None:
    outcome = run("joint")
    in_sequence = run("finetune")
    assert sum(outcome.steps) == sum(in_sequence.steps) == 8
    assert outcome.rows[0] is None
    result = _result(outcome, tasks, "joint")
    assert result.matrix("latest", "local")[0] == [None, None]
    measures = result.measures("latest", "global")
    assert measures["r1"] is not None
    assert (measures["bwf"], measures["fr"], measures["hm"]) == (None, None, None)
    assert not result.sequential
    assert set(outcome.meter.seconds) == PHASES
    assert result.routing(1) is not None
    assert outcome.before == [None, None]


@pytest.mark.slow
def test_reindexing_changes_the_galleries_of_earlier_tasks(run: RunMethod, tasks: list[TaskData]) -> None:
    settings = {**SETTINGS, "learning_rate": 5e-3}  # enough to move videos
    kept = _result(run("finetune", settings), tasks)
    made = _result(run("finetune", settings, reindex=True), tasks)
    assert made.rows[0] == kept.rows[0]
    assert made.rows[1] != kept.rows[1]
    adapters = run("ffa_tame", SMALL_FFA, reindex=True)
    assert _result(adapters, tasks).modes == ["latest"]


def test_queries_option_selects_first_or_all_captions(
    run: RunMethod, backbone: Backbone, tasks: list[TaskData]
) -> None:
    def query_counts(outcome: RunOutcome) -> list[int]:
        row = outcome.rows[-1]
        assert row is not None
        return [recall["queries"] for recall in row["recalls"]["latest"]["local"].values()]

    assert query_counts(run("zero_shot", {})) == [6, 6]
    assert query_counts(run("zero_shot", {}, queries="all")) == [12, 12]


def test_to_json_value_includes_fields_of_subclasses() -> None:
    @dataclasses.dataclass
    class Richer(RecallRow):
        newest: dict[str, Any] = dataclasses.field(default_factory=dict)
        reached: dict[int, float] = dataclasses.field(default_factory=dict)

    row = Richer(newest={"a": np.float32(0.5), "b": np.array([1, 2]), "c": float("nan")}, reached={1: 0.25})
    content = to_json_value(row)
    assert set(content) == {field.name for field in dataclasses.fields(Richer)}
    assert content["newest"] == {"a": 0.5, "b": [1, 2], "c": None}
    assert content["reached"] == {"1": 0.25}
    json.dumps(content, allow_nan=False)


def test_forward_transfer_uses_the_release_before_the_task(
    run: RunMethod, backbone: Backbone, tasks: list[TaskData]
) -> None:
    outcome = run("finetune")
    method = start_method("finetune", backbone, {**SETTINGS, "seed": 1}, None)
    learn_task(method, tasks[0])
    texts = method.query_encoder().encode([c.captions[0] for c in tasks[1].test], [tasks[0].task_id])[:, 0]
    ids = [clip.vector_id for clip in tasks[1].test]
    by_hand = compute_recall(texts, ids, embed_clips(method.encode_videos, tasks[1].test), ids)
    assert outcome.before == [None, to_json_value(by_hand)]


# --- campaigns ---


@pytest.fixture
def campaign(small: Protocol, tasks: list[TaskData], backbone: Backbone, tmp_path: Path) -> Campaign:
    return Campaign(
        small, tasks, "tiny", backbone.fingerprint, 2, "cpu", tmp_path / "out", "cinestrata bench run small"
    )


def test_campaign_runs_each_seed_and_untrained_methods_once(campaign: Campaign) -> None:
    entries = [*select_variants(campaign.protocol.methods, None), parse_variant("finetune@epochs=2")]
    labels = [(run.variant.label, run.seed) for run in campaign.runs(entries)]
    assert labels == [
        ("zero_shot", 0),
        ("finetune", 0),
        ("finetune@epochs=2", 0),
        ("finetune", 1),
        ("finetune@epochs=2", 1),
    ]
    assert len(campaign.runs(entries, seeds=3)) == 7
    once = [parse_variant("finetune").model_copy(update={"seeds": 1})]
    assert len(campaign.runs(once)) == 1
    assert len(campaign.runs(once, seeds=3)) == 3


def test_result_file_has_all_fields(campaign: Campaign) -> None:
    (run,) = campaign.runs([parse_variant("finetune@prior=0")], seeds=1)
    assert campaign.execute([run]) == []
    path = result_path(campaign.out, run.variant.label, 0)
    written = json.loads(path.read_text())
    result = read_result(path)
    assert result is not None
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    assert (written["protocol"], written["label"], written["seed"]) == ("small", "finetune@prior=0", 0)
    assert written["settings"]["epochs"] == 1
    assert written["matrices"]["latest"]["global"] == result.matrix("latest", "global")
    assert written["summary"]["latest"]["local"] == result.measures("latest", "local")
    assert set(written["summary"]["latest"]["local"]) == {
        *("r1", "r5", "r10", "medr", "meanr"),
        *("bwf", "fr", "hm"),
    }
    assert written["rows"][1]["recalls"]["latest"]["local"]["microscope"]["queries"] == 6
    assert written["steps"] == [2, 2]
    assert set(written["seconds"]) == set(written["peak_mib"]) == {*PHASES, "transfer"}
    assert written["memory"]
    facts = written["facts"]
    assert facts["command"] == "cinestrata bench run small"
    assert {"python", "torch", "cinestrata"} <= set(facts["versions"])
    assert (facts["prior"], facts["reindex"]) == (0, False)
    assert facts["videos"]["microscope"] == {"train": 4, "val": 2, "test": 6}
    assert "commit" in facts
    assert facts["protocol"]["settings"] == {"epochs": 1, "batch_size": 4}


@pytest.mark.slow
def test_interrupted_campaign_continues_with_missing_runs(campaign: Campaign) -> None:
    runs = campaign.runs(select_variants(campaign.protocol.methods, None))

    def stop(run: Run, line: str) -> None:
        if run.variant.label == "finetune" and run.seed == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        campaign.execute(runs, report=stop)
    assert [bool(campaign.existing_result(run)) for run in runs] == [True, True, False]
    paths = [result_path(campaign.out, run.variant.label, run.seed) for run in runs]
    stamps = [path.stat().st_mtime_ns for path in paths[:2]]
    made: list[Run] = []
    missing = [run for run in runs if not campaign.existing_result(run)]
    campaign.execute(missing, finished=lambda run, error: made.append(run))
    assert made == [runs[2]]
    assert [path.stat().st_mtime_ns for path in paths[:2]] == stamps
    assert [(r.label, r.seed) for r in read_results(campaign.out, campaign.data)] == [
        ("zero_shot", 0),
        ("finetune", 0),
        ("finetune", 1),
    ]


def test_existing_result_requires_equal_data_and_settings(
    campaign: Campaign, write: Callable[..., str]
) -> None:
    (run,) = campaign.runs([parse_variant("zero_shot")])
    campaign.execute([run])
    assert campaign.existing_result(run)

    def changed(**fields: Any) -> Campaign:
        return dataclasses.replace(campaign, **fields)

    def wanted(protocol: str) -> Campaign:
        return changed(protocol=load_protocol(protocol))

    assert wanted(write("again", title="Another title")).existing_result(run)
    assert not wanted(write("more", settings={"epochs": 2, "batch_size": 4})).existing_result(run)
    assert not wanted(write("raw", prior=0.0)).existing_result(run)
    assert not wanted(write("all", queries="all")).existing_result(run)
    assert not changed(tasks=campaign.tasks[:1]).existing_result(run)
    assert not changed(fingerprint="0" * 64).existing_result(run)
    reindexed = Run(run.variant.model_copy(update={"reindex": True}), 0)
    assert not campaign.existing_result(reindexed)
    path = result_path(campaign.out, "zero_shot", 0)
    path.write_text(path.read_text()[:100])
    assert not campaign.existing_result(run), "a truncated file is not a result"


def test_failed_run_does_not_stop_the_others(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *arguments: Any, **more: Any) -> RunOutcome:
        if name == "finetune":
            raise TrainingDiverged("the loss became nan at step 3")
        return run_method(name, *arguments, **more)

    monkeypatch.setattr(benchmarks.learning.campaign, "run_method", broken)
    runs = campaign.runs([parse_variant("finetune"), parse_variant("zero_shot")], seeds=1)
    ((failed, error),) = campaign.execute(runs)
    assert failed.variant.label == "finetune"
    assert "the loss became nan at step 3" in error
    log = result_path(campaign.out, "finetune", 0).with_suffix(".error.txt")
    assert "Traceback" in log.read_text()
    assert [result.label for result in read_results(campaign.out)] == ["zero_shot"]
    monkeypatch.undo()
    assert campaign.execute(runs[:1]) == []
    assert not log.exists()


def test_any_method_can_learn_the_union_of_all_tasks(run: RunMethod) -> None:
    joint = run("joint")
    alike = run("finetune", jointly=True)
    assert alike.rows == joint.rows
    assert alike.losses == joint.losses


def test_joint_training_without_cross_task_negatives(run: RunMethod) -> None:
    mixed, separate = run("joint"), run("joint", mixed_batches=False)
    assert separate.rows[-1] is not None
    assert separate.losses != mixed.losses


def test_separate_batches_need_joint_training(campaign: Campaign) -> None:
    with pytest.raises(ProtocolError, match="needs a method with batches of all tasks; add jointly: true"):
        parse_variant("ccmr@mixed_batches=false")
    with pytest.raises(ProtocolError, match="needs a method with batches"):
        parse_variant("analytic@jointly=true@mixed_batches=false")
    variants = [parse_variant(f"ccmr@jointly=true{more}") for more in ("", "@mixed_batches=false")]
    mixed, separate = campaign.runs(variants, seeds=1)
    assert campaign.identity(mixed) != campaign.identity(separate)
    assert campaign.run_facts(separate, "torch")["mixed_batches"] is False


@pytest.mark.slow
def test_parallel_processes_give_the_same_results_and_survive_a_crash(campaign: Campaign) -> None:
    entries = [parse_variant(name) for name in ("finetune", "zero_shot", "finetune@epochs=30")]
    runs = campaign.runs(entries, seeds=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        campaign.execute(runs[:2])
    finally:
        torch.set_num_threads(threads)
    alone = read_results(campaign.out)
    apart = dataclasses.replace(campaign, out=campaign.out / "apart", report_seconds=0.001)
    lines: dict[str, list[str]] = {str(run): [] for run in runs}

    def kill(run: Run, line: str) -> None:
        lines[str(run)].append(line)
        if run.variant.label == "finetune@epochs=30":
            for child in multiprocessing.active_children():
                if child.name == str(run):
                    child.kill()

    ((failed, error),) = apart.execute(runs[::-1], jobs=2, report=kill)
    assert failed.variant.label == "finetune@epochs=30"
    assert "died with exit status -9" in error
    together = read_results(apart.out)
    assert [(r.label, r.rows, r.losses) for r in together] == [(r.label, r.rows, r.losses) for r in alone]
    assert {r.facts["machine"]["threads"] for r in together} == {1}
    for run in runs[:2]:
        reported = {f"task {number} of 2 ({task}): indexing" for number, task in enumerate(TASKS, 1)}
        assert reported <= set(lines[str(run)])


def test_task_without_queries_has_no_measures(tmp_path: Path) -> None:
    nothing = {"latest": {"local": {"a": None}, "global": {"a": None}}}
    row = {"recalls": nothing, "pooled": {"latest": {"local": None, "global": None}}, "to_text": nothing}
    result = RunResult("p", "x", "finetune", 0, "d", "r", ["a"], [row])
    assert read_result(write_result(tmp_path, result)) == result
    for gallery in ("local", "global"):
        assert set(result.measures("latest", gallery).values()) == {None}
        assert result.to_text("latest", gallery) is None


def test_result_path_replaces_special_characters(tmp_path: Path) -> None:
    path = result_path(tmp_path, "Base MoCo (½)/x", 3)
    assert path.parent == tmp_path / "results"
    assert path.name == "Base_MoCo_____x-seed3.json"
