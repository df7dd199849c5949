"""Tables and figures of a report, compared with values computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import ProtocolError
from benchmarks.learning.run_results import RunResult, read_results, write_result
from benchmarks.reporting.benchmark_report import recall_tables, write_report

TASKS = ["one", "two", "three"]
FACTS: dict[str, Any] = {
    "command": "cinestrata bench run x",
    "commit": "abc",
    "versions": {"torch": "2"},
    "machine": {"cpus": 2, "threads": 2, "device": "cpu"},
    "backbone": {"name": "tiny", "frames": 2, "engine": "torch 2"},
    "protocol": {"title": "A title <&>"},
    "videos": {task: {"train": 4, "val": 1, "test": 10} for task in TASKS},
}


def _row(shares: list[float], queries: list[int]) -> dict[str, Any]:
    """Return a row with equal local and global galleries; all measures are derived from the given R@1."""
    recalls: dict[str, Any] = {
        task: {"r1": r1, "r5": r1 + 0.1, "r10": r1 + 0.2, "medr": 10 * r1, "meanr": 20 * r1, "queries": count}
        for task, r1, count in zip(TASKS, shares, queries, strict=False)
    }
    total = sum(queries[: len(shares)])
    pooled = {
        measure: sum(recall[measure] * recall["queries"] for recall in recalls.values()) / total
        for measure in ("r1", "r5", "r10", "medr", "meanr")
    }
    both = {"local": recalls, "global": recalls}
    return {
        "recalls": {"latest": both},
        "pooled": {"latest": {"local": pooled, "global": pooled}},
        "to_text": {"latest": both},
        "mean_ap": {
            "latest": {"global": {task: {"10": r1 / 2} for task, r1 in zip(TASKS, shares, strict=False)}}
        },
        "drift": {"latest": dict.fromkeys(list(recalls)[:-1], 4.5)},
        "hubness": {"latest": 1.5},
        "routing_at": {task: {"1": 0.75, "2": 0.8, "4": 0.9} for task in recalls},
    }


def _result(
    label: str = "finetune",
    seed: int = 0,
    *,
    matrix: list[list[float] | None] | None = None,
    queries: list[int] | None = None,
    **fields: Any,
) -> RunResult:
    rows = matrix or [[0.6], [0.5, 0.4], [0.3, 0.35, 0.5]]
    return RunResult(
        **{
            "protocol": "x",
            "label": label,
            "method": label.split("@")[0],
            "seed": seed,
            "data": "d",
            "run": "r",
            "tasks": TASKS,
            "rows": [None if row is None else _row(row, queries or [10, 10, 10]) for row in rows],
            "steps": [5, 5, 5],
            "before": [None, {"r1": 0.3}, {"r1": 0.2}],
            "seconds": {"training": [9.0, 4.0, 5.0], "indexing": [1.0, 1.0, 1.0], "evaluation": [1, 1, 2]},
            "peak_mib": {"training": [90.0, 100.0, 110.0], "indexing": [2.0] * 3, "evaluation": [1.0] * 3},
            "memory": "VmHWM of each phase",
            "facts": FACTS,
            **fields,
        }
    )


def _cells(text: str, label: str) -> list[list[str]]:
    """Return the cells of the rows with a label, from all tables of the text."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row[1:] for row in rows if row[0] == label]


def test_measures_equal_values_computed_by_hand() -> None:
    local = _result().measures("latest", "local")
    assert local == pytest.approx(
        {
            "r1": 100 * (0.3 + 0.35 + 0.5) / 3,
            "r5": 100 * (0.4 + 0.45 + 0.6) / 3,
            "r10": 100 * (0.5 + 0.55 + 0.7) / 3,
            "medr": 10 * (0.3 + 0.35 + 0.5) / 3,
            "meanr": 20 * (0.3 + 0.35 + 0.5) / 3,
            "bwf": 100 * ((0.6 - 0.3) + (0.4 - 0.35)) / 2,
            "fr": 100 * ((0.6 - 0.3) + (0.4 - 0.35)),
            "hm": 2 * 50 * (115 / 3) / (50 + 115 / 3),
        }
    )


def test_global_measures_weight_queries_and_local_measures_weight_tasks() -> None:
    result = _result(queries=[10, 30, 60])
    assert result.measures("latest", "global")["r1"] == pytest.approx(
        100 * (0.3 * 10 + 0.35 * 30 + 0.5 * 60) / 100
    )
    assert result.measures("latest", "local")["r1"] == pytest.approx(100 * (0.3 + 0.35 + 0.5) / 3)


def test_both_directions_weight_queries_and_rm_is_their_mean() -> None:
    result = _result(queries=[10, 30, 60])
    r1 = 100 * (0.3 * 10 + 0.35 * 30 + 0.5 * 60) / 100
    for gallery, mean in (("global", r1), ("local", 100 * (0.3 + 0.35 + 0.5) / 3)):
        assert result.both_directions("latest", gallery) == pytest.approx(
            {f"{side}r{k}": mean + more for side in "ti" for k, more in ((1, 0), (5, 10), (10, 20))}
            | {"rm": mean + 10}
        )
    assert result.pair_mean_ap(5) is None
    result.rows[-1]["pair_map"] = {"1": 0.5, "5": 0.25, "10": 0.125}  # type: ignore[index]
    assert [result.pair_mean_ap(k) for k in (1, 5, 10)] == [50, 25, 12.5]


def test_tables_show_mean_and_deviation_over_seeds() -> None:
    other = _result(seed=1, matrix=[[0.6], [0.5, 0.4], [0.6, 0.35, 0.5]])
    over_all, own, _ = _cells(recall_tables([_result(), other]), "finetune")
    # R@1 is 38.33 and 48.33, BWF 17.5 and 2.5.
    assert over_all[:2] == ["latest", "43.33 ± 7.07"]
    assert over_all[6:] == ["10.00 ± 10.61", "75.00 ± 0.00", "2"]
    assert own[6:8] == ["10.00 ± 10.61", "20.00 ± 21.21"]
    assert own[-1] == "2"


def test_single_seed_is_shown_without_deviation() -> None:
    over_all, *_ = _cells(recall_tables([_result()]), "finetune")
    assert over_all[1] == "38.33"


def test_joint_training_has_a_last_row_and_no_forgetting() -> None:
    joint = _result("joint", matrix=[None, None, [0.5, 0.6, 0.7]])
    over_all, own, _ = _cells(recall_tables([joint]), "joint")
    assert (over_all[1], over_all[6]) == ("60.00", "–")
    assert (own[1], own[6:9]) == ("60.00", ["–", "–", "–"])


def test_galleries_and_sizes_are_in_one_row() -> None:
    sizes = {"trained": 1234, "release": 56789, "search": {"latest": 5000}}
    *_, row = _cells(recall_tables([_result(parameters=sizes)]), "finetune")
    missing = "– / –"  # the rows of this test have two galleries
    shown = "38.33 / 58.33"
    assert row == ["latest", shown, shown, missing, missing, missing, "1,234", "56,789", "5,000"]
    *_, earlier = _cells(recall_tables([_result()]), "finetune")
    assert earlier[-3:] == ["–", "–", "–"]


def test_results_list_zero_shot_first_and_joint_training_last(tmp_path: Path) -> None:
    for label in ("joint", "ffa_tame", "zero_shot", "finetune@epochs=2", "finetune"):
        write_result(tmp_path, _result(label))
    labels = [result.label for result in read_results(tmp_path)]
    assert labels == ["zero_shot", "ffa_tame", "finetune", "finetune@epochs=2", "joint"]


def test_results_of_different_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="has no results"):
        read_results(tmp_path)
    write_result(tmp_path, _result())
    write_result(tmp_path, _result("zero_shot", data="other"))
    with pytest.raises(ProtocolError, match=r"different data: x \(d\), x \(other\)"):
        read_results(tmp_path)
    assert [result.label for result in read_results(tmp_path, "other")] == ["zero_shot"]


def test_report_has_tables_and_run_environment(tmp_path: Path) -> None:
    write_result(tmp_path, _result())
    write_result(tmp_path, _result("zero_shot", matrix=[[0.2], [0.2, 0.1], [0.2, 0.1, 0.3]]))
    write_result(tmp_path, _result("joint", matrix=[None, None, [0.5, 0.6, 0.7]], seconds={"training": [30.0],
                 "indexing": [1.0], "evaluation": [2.0]}, peak_mib={"training": [200.0]}))  # fmt: skip
    report = write_report(tmp_path, read_results(tmp_path))
    text = report.read_text()
    for words in (
        "cinestrata bench run x",
        "commit abc",
        "torch 2",
        "12 train, 3 val, 30 test videos",
        "tiny",
    ):
        assert words in text
    *_, by_task, further, costs = _cells(text, "finetune")
    assert further[:7] == ["latest", "38.33", "38.33", "19.17", "5.00", "30.00", "4.50"]
    assert further[7:] == ["75.00", "80.00", "90.00", "1.50"]
    assert by_task == ["latest", "30.00 (30.00)", "35.00 (5.00)", "50.00 (0.00)"]
    # 8 s for the last task and 6 s for the second; 110 and 100 MiB.
    assert costs == ["15", "18.0", "3.0", "4.0", "1.33", "110", "1.10", "–"]
    *_, by_task, further, costs = _cells(text, "joint")
    assert further[1:7] == ["60.00", "60.00", "30.00", "–", "–", "4.50"]
    assert by_task == ["latest", "50.00", "60.00", "70.00"]
    assert costs == ["15", "30.0", "1.0", "2.0", "–", "200", "–", "–"]
    zero_shot, finetune = ["20.00", "10.00", "–"], ["50.00", "40.00", "–"]
    assert _cells(text, "after two") == [zero_shot, zero_shot, finetune, finetune], (
        "joint training has no row after the second task"
    )
