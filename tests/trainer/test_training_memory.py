"""Memory of a training: the whole batch where it fits, parts where they fit, else an error before the first step."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from models.backbones.backbone import Backbone
from models.errors import NotEnoughMemory
from trainer import training_memory
from trainer.methods import Method, start_method
from trainer.task_data import TaskData
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import fit, learn_task
from trainer.training_memory import peak_bytes, reset_peak, usable_bytes

BATCH = 6
MIB = 1024**2


@pytest.fixture
def task(random_task: Callable[..., TaskData]) -> TaskData:
    return random_task("task", [[f"video {number}"] for number in range(BATCH)])


def _method(backbone: Backbone, **settings: Any) -> Method:
    return start_method("strata", backbone, {"epochs": 1, "batch_size": BATCH, **settings}, None)


def _needed(backbone: Backbone, task: TaskData, monkeypatch: pytest.MonkeyPatch) -> int:
    """Estimate for the whole batch from two measurements, where the bound from one does not fit."""
    plans: list[training_memory.MemoryPlan] = []

    def recorded(*args: Any, **kwargs: Any) -> training_memory.MemoryPlan:
        plans.append(plan(*args, **kwargs))
        return plans[-1]

    plan = training_memory.plan_memory
    with monkeypatch.context() as patch:
        patch.setattr("trainer.training_loop.plan_memory", recorded)
        learn_task(_method(backbone), task)
        _limit(patch, plans[0].needed - 1)
        learn_task(_method(backbone), task)
    assert [each.micro_batch for each in plans] == [None, None]
    assert plans[1].needed < plans[0].needed
    return plans[1].needed


def _limit(monkeypatch: pytest.MonkeyPatch, usable: int) -> None:
    monkeypatch.setattr(training_memory, "usable_bytes", lambda device: usable)


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_encoded_in_parts_with_the_same_result(
    backbone: Backbone, task: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = _needed(backbone, task, monkeypatch)
    whole, parts = _method(backbone), _method(backbone)
    losses = learn_task(whole, task)
    _limit(monkeypatch, needed - 1)
    assert learn_task(parts, task) == pytest.approx(losses, rel=1e-5)
    assert whole.micro_batch is None
    assert parts.micro_batch is not None
    assert 1 <= parts.micro_batch < BATCH


def test_too_little_memory_ends_the_training_before_its_first_step(
    backbone: Backbone, task: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = _method(backbone)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.begin_task(task.task_id, task.name)
    fixed = 3 * sum(p.nbytes for group in method.parameter_groups() for p in group["params"])
    for usable in (fixed - 1, fixed + MIB // 10):
        _limit(monkeypatch, usable)
        with pytest.raises(NotEnoughMemory, match="with batch_size 6 and 2 frames per video") as error:
            fit(method, task, report=pytest.fail)
        assert f"{usable / 1e9:.2f} GB is free" in str(error.value)
        assert "checkpointing: true" in error.value.hint
    assert all(before[name].equal(tensor) for name, tensor in method.state_dict().items())


@pytest.mark.slow
def test_resumed_training_keeps_its_micro_batch(
    backbone: Backbone, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    needed = _needed(backbone, task, monkeypatch)
    with monkeypatch.context() as patch:
        _limit(patch, needed - 1)
        first = _method(backbone)
        first.begin_task(task.task_id, task.name)
        fit(first, task, checkpoints=checkpoints)
    resumed = _method(backbone, epochs=2)
    resumed.begin_task(task.task_id, task.name)
    fit(resumed, task, checkpoints=checkpoints)
    assert resumed.micro_batch == first.micro_batch is not None


def test_measured_steps_take_no_memory_from_the_training() -> None:
    network = torch.nn.Sequential(*[torch.nn.Linear(1500, 1500) for _ in range(20)])
    weights = list(network.parameters())
    trained = sum(weight.nbytes for weight in weights)

    def loss(frames: torch.Tensor, texts: Sequence[str], references: torch.Tensor | None) -> torch.Tensor:
        return network(frames.float()).sum()

    before = _anonymous_bytes()
    inputs = (torch.ones(2, 1500), ["one", "two"], None)
    training_memory.plan_memory(loss, *inputs, trained=weights, has_moments=False, later_bytes=0)
    assert _anonymous_bytes() - before < trained / 4


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


# -- free memory --------------------------------------------------------------------------------------------


def _files(folder: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "proc", folder / "groups"


def test_usable_memory_is_the_least_of_machine_and_control_groups(tmp_path: Path) -> None:
    proc, groups = _files(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4000 kB\nHugePages_Total: 0\n",
            "proc/self/cgroup": "0::/pod/worker\n",
            "groups/pod/memory.max": f"{3000 * 1024}\n",
            "groups/pod/memory.current": f"{2500 * 1024}\n",
            "groups/pod/memory.stat": f"anon 1\ninactive_file {500 * 1024}\n",
            "groups/pod/worker/memory.max": "max\n",
            "groups/pod/worker/memory.current": "7\n",
        },
    )
    cpu = torch.device("cpu")
    assert usable_bytes(cpu, proc=proc, cgroups=groups) == int(0.75 * 1000 * 1024)
    (groups / "pod/memory.max").write_text("max\n")
    assert usable_bytes(cpu, proc=proc, cgroups=groups) == int(0.75 * 4000 * 1024)


def test_usable_memory_is_within_the_limit_of_the_address_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_AS: 5000 * 1024}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits.get(kind, resource.RLIM_INFINITY),) * 2)
    status = "Name:\tpython\nVmSize:\t  2000 kB\nVmData:\t  1000 kB\n"
    proc, groups = _files(tmp_path, {"proc/meminfo": "MemAvailable: 4000 kB\n", "proc/self/status": status})
    cpu = torch.device("cpu")
    assert usable_bytes(cpu, proc=proc, cgroups=groups) == int(0.75 * 3000 * 1024)
    limits[resource.RLIMIT_DATA] = 2500 * 1024
    assert usable_bytes(cpu, proc=proc, cgroups=groups) == int(0.75 * 1500 * 1024)


def test_peak_of_the_process_counts_where_the_kernel_cannot_reset_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(training_memory, "_PROC", tmp_path / "none")
    assert not reset_peak(cpu)
    assert peak_bytes(cpu) == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_without_known_limits_memory_is_unbounded(tmp_path: Path) -> None:
    assert usable_bytes(torch.device("cpu"), proc=tmp_path, cgroups=tmp_path) > 2**60
