"""The command ``cinestrata bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.learning.protocol import protocol_names
from tests.cli.invocation import run

SMALL = {
    "title": "Small",
    "source": {
        "kind": "world",
        "domains": ["night-traffic", "microscope"],
        "seed": 3,
        "train": 2,
        "val": 1,
        "test": 3,
        "categories": 2,
        "captions": 2,
    },
    "frames": 2,
    "seeds": 2,
    "settings": {"epochs": 1, "batch_size": 4},
    "methods": ["zero_shot", "finetune"],
}


@pytest.fixture
def protocol(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def bench(*arguments: object) -> Any:
    return run("bench", *map(str, arguments))


def test_protocols_are_listed() -> None:
    outcome = bench("run")
    assert outcome.exit_code == 0
    assert [line.split()[0] for line in outcome.output.splitlines()] == protocol_names()


@pytest.mark.slow
def test_finished_runs_of_a_protocol_are_kept(protocol: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = ("--out", out, "--cache", tmp_path / "frames", "--device", "cpu")
    first = bench("run", protocol, *common)
    assert first.exit_code == 0, first.output
    assert "finetune, seed 1: task 2 of 2 (microscope)" in first.output
    assert "| finetune | latest |" in first.output
    report = (out / "report.md").read_text()
    assert "# Small (`small`)" in report
    assert (
        first.output[first.output.index("**Global gallery**") :].partition("Written to")[0].strip() in report
    )
    assert {path.name for path in (out / "results").iterdir()} == {
        "zero_shot-seed0.json",
        "finetune-seed0.json",
        "finetune-seed1.json",
    }
    second = bench("run", protocol, *common, "--methods", "finetune,finetune@prior=0", "--seeds", 1)
    assert second.exit_code == 0, second.output
    assert "1 of 2 runs already have results" in second.output
    assert "finetune@prior=0, seed 0" in second.output
    assert "finetune, seed 0" not in second.output
    assert "| zero_shot | latest |" in second.output, "the table includes earlier results"
    assert "| finetune@prior=0 | latest |" in (out / "report.md").read_text()


def test_options_are_passed_as_settings(protocol: Path, tmp_path: Path) -> None:
    outcome = bench(
        *("run", protocol, "--methods", "zero_shot", "--set", "batch_size=2", "--prior", 0, "--reindex"),
        *("--tasks", 1, "--again", "--out", tmp_path / "out", "--cache", tmp_path / "frames"),
    )
    assert outcome.exit_code == 0, outcome.output
    (path,) = (tmp_path / "out" / "results").iterdir()
    result = json.loads(path.read_text())
    assert result["label"] == "zero_shot@batch_size=2@reindex=true@prior=0"
    assert result["settings"]["batch_size"] == 2
    assert (result["facts"]["prior"], result["facts"]["reindex"]) == (0, True)
    assert result["tasks"] == ["night-traffic"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("world-9",), "no protocol 'world-9'"),
        (("folder", "--methods", "magic"), "unknown method 'magic'"),
        (("folder", "--methods", "finetune@epochs=0"), "settings of method 'finetune': epochs"),
        (("folder", "--set", "epochs"), "'epochs' is not setting=value"),
        (("folder", "--backbone", "huge"), "backbone 'huge' is unknown"),
        (("ctvr-msrvtt-10",), "--videos"),
        (("ctvr-actnet-20", "--videos", "nowhere"), "nowhere is not a folder"),
        (("cvlm",), "vatex/manifest.jsonl"),
        (("folder",), "--videos"),
        (("sevige",), "region_graphs.json"),
        (("secoco", "--videos", "nowhere"), "nowhere is not a folder"),
        (("p9d",), "gallery.json"),
    ],
)
def test_invalid_arguments_are_reported_without_traceback(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = bench("run", *arguments, "--out", tmp_path / "out", "--cache", tmp_path / "frames")
    assert outcome.exit_code == 1
    assert message in outcome.output
    assert "Traceback" not in outcome.output
    assert not (tmp_path / "out").exists()


def test_clips_without_a_manifest_are_refused(tmp_path: Path) -> None:
    outcome = bench("clips", tmp_path, "--methods", "zero_shot")
    assert outcome.exit_code == 1
    assert "each subfolder with a manifest is a domain" in " ".join(outcome.output.split())


@pytest.mark.parametrize(
    "options", [("--counts", "5,x"), ("--counts", "5", "--methods", "analytic,zero_shot")]
)
def test_invalid_numbers_of_captioned_clips_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    outcome = bench("clips", tmp_path, *options)
    assert outcome.exit_code == 2
    assert "--counts" in outcome.output


def test_routing_table_of_a_split(tmp_path: Path) -> None:
    clips = {
        noun: [{"video_id": f"{noun}{number}", "caption": f"the {noun} moves"} for number in range(2)]
        for noun in ("horse", "truck")
    }
    split = [{"train": {noun: rows}, "val": {noun: rows}} for noun, rows in clips.items()]
    (tmp_path / "two.json").write_text(json.dumps(split))
    outcome = bench("routing", tmp_path / "two.json", "--backbone", "tiny", "--out", tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "| token profiles | 100.0 / 100.0 / 100.0 |" in outcome.output
    assert "| token profiles | 100.0 / 100.0 / 100.0 |" in (tmp_path / "out" / "table.md").read_text()


def test_a_library_of_queries_needs_two_domains(tmp_path: Path) -> None:
    outcome = bench("queries", tmp_path, "--out", tmp_path / "out", "--cache", tmp_path / "frames")
    assert outcome.exit_code == 1
    assert f"each subfolder of {tmp_path} with a manifest.jsonl" in " ".join(outcome.output.split())
    outcome = bench("queries", tmp_path, "--domains", "gym,zoo")
    assert "there is no domain gym, zoo" in " ".join(outcome.output.split())
    for shares in ("a fifth", "0.2,1", ""):
        outcome = bench("queries", tmp_path, "--uncaptioned", shares)
        assert outcome.exit_code == 1
        assert "--uncaptioned has shares of clips" in outcome.output
