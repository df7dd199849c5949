"""Train in several processes on one machine: replicas of a method follow the steps of this process.

Process 0 is the learning worker itself. It alone holds the claim, writes checkpoints, reports progress and publishes.
Each replica starts with a copy of the method, loads and computes its part of every batch, and ends with the task.
"""

from __future__ import annotations

import io
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from models.releases.release_state import ReleaseState
from trainer.errors import ReplicaKilled
from trainer.methods import Method, MethodError
from trainer.process_group import ALONE, ProcessGroup, joined_group
from trainer.task_data import TaskData
from trainer.training_loop import fit

_EXIT_SECONDS = 1.0  # within which a killed process is reaped, once its connections are closed


@contextmanager
def training_group(
    method: Method, release: ReleaseState | None, task: TaskData, processes: int
) -> Iterator[ProcessGroup]:
    """Start the processes that train a method on a task, for :func:`trainer.training_loop.learn_task`.

    The method, which continues a release, is in the state before ``begin_task``. A task without training and a
    closed-form method use this process alone. On GPUs, each process has its own; raise MethodError for fewer GPUs than
    processes, and ReplicaKilled if a process was killed.
    """
    if processes == 1 or not method.is_trainable or method.is_closed_form or not task.pairs:
        yield ALONE
        return
    device = method.backbone.device
    if device.type == "cuda" and torch.cuda.device_count() < processes:
        raise MethodError(
            f"CINESTRATA_TRAINING_PROCESSES is {processes}, and this machine has {torch.cuda.device_count()} GPUs; "
            "set it to at most this number"
        )
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with tempfile.TemporaryDirectory(prefix="cinestrata-training-") as name:
        folder = Path(name)
        # Pass by value: if processes shared tensors, the steps of each would change them.
        copy = io.BytesIO()
        torch.save((method.backbone, type(method), method.config, release), copy)
        arguments = processes, folder, device.type, copy.getvalue(), task, torch.get_num_threads()
        replicas = [
            spawn.Process(target=_run_replica, args=(rank, *arguments), daemon=True)
            for rank in range(1, processes)
        ]
        try:
            for replica in replicas:
                replica.start()
            with joined_group(0, processes, folder, device) as group:
                yield group
        except RuntimeError as error:
            for replica in replicas:
                replica.join(_EXIT_SECONDS)
                if replica.exitcode is not None and replica.exitcode < 0:
                    raise ReplicaKilled(
                        f"a training process was killed by signal {-replica.exitcode}; often the machine ran out of "
                        "memory: set CINESTRATA_TRAINING_PROCESSES to fewer processes"
                    ) from error
            raise
        finally:
            for replica in replicas:
                replica.kill()  # after the last step, or an error in this process, there is nothing to finish
                replica.join()


def _run_replica(
    rank: int,
    processes: int,
    folder: Path,
    device_type: str,
    method_copy: bytes,
    task: TaskData,
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    if device_type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    # The bytes come from the process that started this one; no file is unpickled.
    backbone, method_class, config, release = torch.load(
        io.BytesIO(method_copy), map_location=device, weights_only=False
    )
    method = method_class.resume(backbone, config, release)
    with joined_group(rank, processes, folder, device) as group:
        method.begin_task(task.task_id, task.name)
        fit(method, task, group=group)
