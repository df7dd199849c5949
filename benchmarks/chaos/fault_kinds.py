"""The faults of a chaos run. Each strikes a deployment at a random moment in a round, and is then healed."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from celery import Celery

from benchmarks.chaos.deployments import Deployment, send_signal
from benchmarks.chaos.faulty_resources import DataVolume, TcpProxy
from benchmarks.chaos.machines import APIS, OPERATOR, SPARE, MachinesDeployment
from benchmarks.chaos.process_faults import KILL_POINTS, arm_kill_point, disarm, killed_process, shift_clock
from benchmarks.chaos.service_client import NO_CATALOG

_WORKERS = ("learning worker", "probing worker")
_PAST_LEASE = 13.0  # seconds; leases in the deployments last ten
_FULL_SECONDS = 6.0
_CUT_SECONDS = 8.0
OUTAGE_SECONDS = 30.0  # of a machine or its cable
_ANY, _NO_ANSWER, _NO_VECTORS = ".*", r"\w*(Error|Timeout)\b", "degraded: "
_START_SECONDS = 10.0  # for an API to load its snapshot while the database is unreachable


@dataclass
class FaultContext:
    """What a fault can act on, its workers, and whether an API process died at a kill point."""

    deployment: Deployment
    volume: DataVolume
    rng: random.Random
    is_round_over: Callable[[], bool]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    has_ended_api: bool = False


@dataclass(frozen=True)
class Fault:
    """A kind of fault, by its name in the report."""

    kind: str
    strike: Callable[[FaultContext], bool]  # causes the fault and heals it; returns whether it struck
    # searches may fail until it is ready again; a kill point notes it in the context
    restarts_api: bool = False
    # API → pattern of reasons for which it may meanwhile give no complete answer
    excuses: Mapping[str, str] = field(default_factory=dict)
    fails_tasks: bool = False  # a task may fail with a hint, and be retried by the operator
    needs: frozenset[str] = frozenset()  # kinds of operations, one of which the round must have; empty: none


def available_faults(deployment: Deployment, volume: DataVolume) -> list[Fault]:
    """List the faults that this deployment and this machine permit."""
    if isinstance(deployment, MachinesDeployment):
        return _machine_faults(deployment)
    faults = [
        *(
            Fault(f"kill {role}", partial(_kill, [role]), restarts_api=role == "api")
            for role in (*_WORKERS, "api", "redis")
        ),
        Fault("kill redis and lose its messages", _lose_messages),
        *(Fault(f"stop {role} past its lease", partial(_pause, role)) for role in _WORKERS),
        Fault("deliver every message twice", _deliver_again),
        Fault("two learning workers", _start_second_worker),
        Fault("restart the API during a hot swap", _restart_in_swap, restarts_api=True),
        Fault("kill all processes", _kill_all, restarts_api=True),
        Fault("read-only data folder", lambda context: _during(context.volume.read_only()), fails_tasks=True),
        Fault("restart the workers with a read-only data folder", _restart_read_only, fails_tasks=True),
        *(_point_fault(name) for name in KILL_POINTS),
    ]
    if volume.is_limited:
        faults.append(Fault("full disk", lambda context: _during(context.volume.full()), fails_tasks=True))
    if (postgres := deployment.postgres) is not None:
        faults.append(Fault("kill postgresql", lambda _: postgres.kill()))
    for role, network in deployment.networks.items():
        for kind, interrupt in (("cut", network.cut), ("freeze", network.freeze)):
            strike = partial(_outage, interrupt, network.restore, seconds=_CUT_SECONDS)
            faults.append(Fault(f"{kind} the network of {role} to the database", strike))
        if role == "api":
            restart = partial(_restart_without, network)
            faults.append(Fault("restart the API without the database", restart, restarts_api=True))
    if deployment.mode == "embedded":
        faults += [
            Fault("clock jumps forward", lambda context: _jump(context, 1)),
            Fault("clock jumps backward", lambda context: _jump(context, -1)),
        ]
    return faults


def _machine_faults(machines: MachinesDeployment) -> list[Fault]:
    everywhere = dict.fromkeys(APIS, _ANY)
    faults = [
        Fault("add a machine, take one away", lambda context: _replace_worker(context, machines)),
        Fault("restart all machines in reverse order with other clocks", _kill_all, excuses=everywhere),
    ]
    for name in ("api2", "learner", "prober1", "redis", "postgres"):
        excuses = {"api2": {name: _ANY}, "postgres": dict.fromkeys(APIS, NO_CATALOG)}.get(name, {})
        off, on = partial(machines.power_off, name), partial(machines.power_on, name)
        faults.append(Fault(f"no power for {name}", partial(_outage, off, on), excuses=excuses))
    for (client, server), cable in machines.cables.items():
        if client != SPARE and (client != OPERATOR or server in APIS):
            reason = {"postgres": NO_CATALOG, "milvus": _NO_VECTORS}.get(server)
            excuses = {server: _NO_ANSWER} if server in APIS else {client: reason} if reason else {}
            kind = f"cut the cable from {client} to {server}"
            faults.append(Fault(kind, partial(_outage, cable.cut, cable.restore), excuses=excuses))
    return faults


def _outage(
    begin: Callable[[], object], end: Callable[[], object], _context: FaultContext, seconds: float = 0.0
) -> bool:
    begin()
    time.sleep(seconds or OUTAGE_SECONDS)
    end()
    return True


def _replace_worker(context: FaultContext, machines: MachinesDeployment) -> bool:
    """Take a worker away until the end of the round, and add another one that stays."""
    if SPARE not in machines.powered:
        machines.power_on(SPARE)
    machines.take_away("prober1")
    return _outage(lambda: None, partial(machines.power_on, "prober1"), context)


def _kill(roles: Sequence[str], context: FaultContext) -> bool:
    """Kill all processes of some roles; returns whether one of them was running."""
    return _signal([pid for role in roles for pid in context.deployment.pids(role)], signal.SIGKILL)


def _pause(role: str, context: FaultContext) -> bool:
    """Stop the processes of a role past their lease, and continue them."""
    pids = context.deployment.pids(role)
    _signal(pids, signal.SIGSTOP)
    time.sleep(_PAST_LEASE)
    return _signal(pids, signal.SIGCONT)


def _point_fault(name: str) -> Fault:
    operation = KILL_POINTS[name].operation
    needs = {
        "learn": {"ingest", "relearn"},
        "probe": {"ingest", "append"},
        "delete": {"delete"},
        "post": {"ingest", "append"},
    }.get(operation, {operation})

    def strike(context: FaultContext) -> bool:
        folder, api = context.deployment.faults, context.deployment.pids("api")
        arm_kill_point(folder, name)
        while (killed := killed_process(folder)) is None:
            if context.is_round_over() and disarm(folder):
                return False
            time.sleep(0.05)
        context.has_ended_api = killed in api
        return True

    return Fault(f"kill at: {name}", strike, needs=frozenset(needs))


def _restart_without(network: TcpProxy, context: FaultContext) -> bool:
    """Restart the API while its network is cut."""
    network.cut()
    killed = _kill(["api"], context)
    time.sleep(_START_SECONDS + context.rng.uniform(0, _CUT_SECONDS))
    network.restore()
    return killed


def _lose_messages(context: FaultContext) -> bool:
    pids = context.deployment.pids("redis")
    context.deployment.remove_messages()
    return _signal(pids, signal.SIGKILL)


def _deliver_again(context: FaultContext) -> bool:
    """Send all messages of every task again, whatever its state."""
    app = Celery("chaos", broker=context.deployment.broker_url, set_as_current=False)
    with context.deployment.catalog() as catalog:
        tasks = [task["id"] for task in catalog.tasks()]
        syncs = [row["id"] for row in catalog.rows("SELECT id FROM syncs")]
    with app.connection_for_write() as connection:
        for queue, name, ids in (
            ("cpu", "cinestrata.probe", tasks),
            ("gpu", "cinestrata.learn", tasks),
            ("gpu", "cinestrata.append", tasks),
            ("gpu", "cinestrata.embed", tasks),
            ("cpu", "cinestrata.sync", syncs),
        ):
            for identifier in ids * 2:
                app.send_task(name, args=[identifier], queue=queue, connection=connection, ignore_result=True)
    return bool(tasks)


def _start_second_worker(context: FaultContext) -> bool:
    """Start a second learning worker, which stays until the end of the round."""
    context.workers.append(context.deployment.start_worker("gpu"))
    return True


def _restart_in_swap(context: FaultContext) -> bool:
    """Kill the API at the moment when the manifest is replaced."""
    manifest = context.deployment.data / "index" / "manifest.json"
    before = _modified(manifest)
    while _modified(manifest) == before:
        if context.is_round_over():
            return False
        time.sleep(0.005)
    time.sleep(context.rng.uniform(0, 0.8))
    return _kill(["api"], context)


def _restart_read_only(context: FaultContext) -> bool:
    """Kill the workers; those that replace them open all files for the first time."""
    with context.volume.read_only():
        _kill(_WORKERS, context)
        time.sleep(_FULL_SECONDS)
    return True


def _during(interrupted: AbstractContextManager[None]) -> bool:
    with interrupted:
        time.sleep(_FULL_SECONDS)
    return True


def _kill_all(context: FaultContext) -> bool:
    context.deployment.kill_all()
    return True


def _jump(context: FaultContext, direction: int) -> bool:
    """Shift the clock by one to ten minutes for some seconds, and back."""
    shift_clock(context.deployment.faults, direction * context.rng.uniform(60, 600))
    time.sleep(_FULL_SECONDS)
    shift_clock(context.deployment.faults, 0)
    return True


def _signal(pids: Iterable[int], number: signal.Signals) -> bool:
    """Send a signal to processes; returns whether one of them was running."""
    return any([send_signal(pid, number) for pid in pids])


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
