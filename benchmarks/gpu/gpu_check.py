"""Check the product on a GPU: equal vectors, rates, memory and errors, in a JSON report.

    make gpu-check                                                   # or, where torch is installed already:
    python -m benchmarks.gpu.gpu_check --out gpu-check.json
    python -m benchmarks.gpu.gpu_check --device cpu                  # the same checks with small sizes

The checks need no network: towers have random weights, and videos are drawn. They run one by one, each in its own
process. A check whose package is not installed is skipped, naming the package; so are checks that no longer fit the
time budget. The exit status is 0 if no check failed and at least one measured something.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.check_runner import Check, CheckResult, GpuPlan, plan_checks, run_checks

_NEEDED = ("machine", "checkpoints")
BUDGET = 460.0  # seconds: eight minutes including start and end


def list_checks(plan: GpuPlan) -> list[Check]:
    """List the checks in the order in which they run: what other checks or most users need comes first."""

    def check(name: str, target: str, seconds: float, *arguments: object) -> Check:
        seconds *= 10 if plan.device == "cpu" else 1  # a busy processor must not fail a check
        target = f"benchmarks.gpu.{target}"
        return Check(name, target, seconds, arguments, is_required=name == "machine")

    return [
        # With the first import of torch, which takes a minute from a slow disk.
        check("machine", "machine_checks:describe_machine", 120),
        check("checkpoints", "machine_checks:write_checkpoints", 90),
        *(check(f"towers {model}", "tower_checks:check_towers", 60, model) for model in plan.models),
        check("releases", "tower_checks:check_releases", 60),
        *(
            check(f"training {size.method} {size.model}", "tower_checks:measure_training", 90, size)
            for size in plan.trainings
        ),
        check("processes", "tower_checks:check_processes", 90),
        check("out of memory", "service_checks:check_out_of_memory", 90),
        *(check(f"embedding {model}", "tower_checks:measure_embedding", 60, model) for model in plan.models),
        check("decoding", "service_checks:measure_decoding", 30),
        check("searches", "service_checks:measure_searches", 120),
        *(check(f"scan {count:,}", "scan_checks:check_scan", 90, count) for count in plan.scanned_vectors),
    ]


def exit_status(results: list[CheckResult]) -> int:
    """Choose the exit status: 0 if no check failed and one besides that of the machine passed, otherwise 1."""
    passed = [result for result in results if result.outcome == "passed"]
    return 0 if len(passed) > 1 and not any(result.outcome == "failed" for result in results) else 1


def _find_schemas() -> None:
    """Make the schemas importable, here and in child processes, where the project is not installed."""
    if find_spec("cinestrata_schemas") is None:
        root = Path(__file__).resolve().parents[2]
        folders = [str(root), str(root / "clients" / "python")]
        sys.path += folders
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *folders])


def _print(result: CheckResult) -> None:
    words = [f"{name} {value}" for name, value in result.figures.items()]
    lines = [f"{result.outcome:<8}{result.name} ({result.seconds:.0f} s)", *words]
    if result.reason:
        lines.append(result.reason.strip())
    sys.stdout.write("\n          ".join(lines) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Parse the command line, run the checks, and print and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.gpu_check", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all checks")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="run only checks whose names begin so, and what they need"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="file of the report")
    options = parser.parse_args()
    _find_schemas()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # otherwise workers use a GPU that torch finds
    began = time.monotonic()
    report = {"device": options.device, "started": datetime.now(UTC).isoformat(timespec="seconds")}
    with tempfile.TemporaryDirectory(prefix="cinestrata-gpu-", ignore_cleanup_errors=True) as folder:
        plan = plan_checks(options.device, Path(folder))
        checks = list_checks(plan)
        chosen = [one for one in checks if one.name in _NEEDED or one.name.startswith(tuple(options.only))]
        if all(one.name in _NEEDED for one in chosen):
            parser.error(f"--only names none of the checks {', '.join(one.name for one in checks)}")
        results: list[CheckResult] = []
        for result in run_checks(chosen, plan, options.budget):
            results.append(result)
            _print(result)
            # The report so far: the run may be cut short.
            seconds = round(time.monotonic() - began, 1)
            content = {**report, "seconds": seconds, "checks": [asdict(one) for one in results]}
            options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    counts = Counter(one.outcome for one in results)
    summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    sys.stdout.write(f"{summary} in {time.monotonic() - began:.0f} s; report in {options.out}\n")
    sys.exit(exit_status(results))


if __name__ == "__main__":
    main()
