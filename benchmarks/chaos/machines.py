"""A deployment on several machines, each with its own network, host name, process IDs, temporary files and clock.

A machine is a set of Linux namespaces. A pair of virtual network devices, its cable, leads to each server that it uses.
Where namespaces are not permitted, machines are processes, and cables are proxies. All share the data volume.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import psycopg

from benchmarks.chaos.deployments import Deployment, process_environment, redis_command, send_signal
from benchmarks.chaos.faulty_resources import PostgresServer, TcpProxy
from benchmarks.chaos.library_checker import CatalogReader
from benchmarks.chaos.service_client import EditStream, OperationDriver, SearchStream, Video
from benchmarks.ingest.embedded_service import COMMAND, free_port, wait_until_ready

OPERATOR = "operator"  # the machine of the harness
APIS = ("api1", "api2")
SPARE = "prober3"  # is added later
_PRODUCT = (*APIS, "learner", "prober1", "prober2")
_OFFSETS = {name: 30 if number % 2 else -30 for number, name in enumerate(_PRODUCT)}  # seconds
_BUCKET = "library"
_OBJECT_STORE = {
    "AWS_ACCESS_KEY_ID": "machines",
    "AWS_SECRET_ACCESS_KEY": "machines",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_RESTART_SECONDS, _STOP_SECONDS = 1.0, 60.0
_INSIDE = "MACHINES_NETWORK"  # variable that is set in a network of the run's own
_AS_NETWORK = 'ip link set lo up && mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && exec "$@"'
_AS_MACHINE = 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
_CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec += atol(getenv("CLOCK_OFFSET"));
  return failed;
}
"""


class VirtualCable:
    """Two virtual network devices, one in the namespace of each machine; a machine reaches the server at an endpoint.

    A cut cable loses what is sent, without an error. Unplugging ends connections without a packet.
    """

    def __init__(self, number: int, client: str, server: str, port: int) -> None:
        self.ends = (client, server)
        self._near, self._far = f"c{number}", f"s{number}"
        self._network, self._mac = f"10.77.{number}", f"02:00:00:00:00:{number:02x}"
        self.endpoint = f"{self._network}.1:{port}"

    def plug(self) -> None:
        _ip(OPERATOR, f"link add {self._near} type veth peer name {self._far} address {self._mac}")
        for device, machine, host in zip((self._near, self._far), self.ends, (2, 1), strict=True):
            if machine != OPERATOR:
                _ip(OPERATOR, f"link set {device} netns {machine}")
            _ip(machine, f"addr add {self._network}.{host}/30 dev {device}")
            _ip(machine, f"link set {device} up")
        # Otherwise, a neighbour that does not answer would be reported as an error.
        _ip(
            self.ends[0], f"neigh replace {self._network}.1 lladdr {self._mac} dev {self._near} nud permanent"
        )

    def unplug(self) -> None:
        _ip(self.ends[1], f"link del {self._far}")

    def cut(self) -> None:
        _ip(self.ends[1], f"link set {self._far} down")

    def restore(self) -> None:
        _ip(self.ends[1], f"link set {self._far} up")


class ProxyCable:
    """A proxy instead of a :class:`VirtualCable`."""

    def __init__(self, _number: int, client: str, server: str, port: int) -> None:
        self.ends = (client, server)
        proxy = TcpProxy(lambda: socket.create_connection(("127.0.0.1", port)))
        self.endpoint = f"127.0.0.1:{proxy.port}"
        self.plug = self.restore = proxy.restore
        self.unplug, self.cut = proxy.cut, proxy.freeze


Cable = VirtualCable | ProxyCable


class MachinesDeployment(Deployment):
    """Two APIs, a learning and two probing workers, PostgreSQL, Redis, an S3 server and, if wanted, Milvus.

    A thread restarts each process that ends on a machine that has power, like a container engine.
    """

    mode = "machines"

    def __init__(self, folder: Path, data: Path, *, milvus: bool = False) -> None:
        super().__init__(folder, data)
        self._folder, self._is_namespaced = folder, _INSIDE in os.environ
        self._servers = ("postgres", "redis", "objects", *(["milvus"] if milvus else []))
        self.root, self.headers = _ObjectDriver.root, {"X-API-Key": "key-of-the-machines"}
        postgres = PostgresServer.create(folder / "postgres")
        assert postgres is not None, "PostgreSQL comes as a wheel only for some Pythons"
        self._postgres_url = postgres.url
        ports = {name: free_port() for name in (*self._servers, *APIS)}
        host = "0.0.0.0" if self._is_namespaced else "127.0.0.1"  # noqa: S104 (of a namespace)
        addresses = {name: ("--host", host, "--port", str(port)) for name, port in ports.items()}
        scripts = Path(sys.executable).parent
        redis = redis_command(ports["redis"], self.messages)
        self._postgres_port = ports["postgres"]
        self._commands = {
            "postgres": postgres.command(host, ports["postgres"]),
            "redis": [*redis, "--bind", host, "--protected-mode", "no"],
            "objects": [str(scripts / "moto_server"), *addresses["objects"]],
            "learner": [*COMMAND, "worker", "--queue", "gpu"],
            **{name: [*COMMAND, "worker", "--queue", "cpu"] for name in ("prober1", "prober2", SPARE)},
        }
        if milvus:
            command = [str(scripts / "milvus-lite"), "server", "--data-dir", str(folder / "milvus")]
            self._commands["milvus"] = [*command, *addresses["milvus"]]
        for name in APIS:
            serve = f'"$@" migrate && exec "$@" serve {" ".join(addresses[name])}'
            self._commands[name] = ["sh", "-c", serve, "sh", *COMMAND]
        pairs = [(OPERATOR, name) for name in (*APIS, *self._servers[2:])]
        pairs += [(name, used) for name in (*APIS, "learner") for used in self._servers]
        pairs += [(name, used) for name in ("prober1", "prober2", SPARE) for used in self._servers[:3]]
        kind = VirtualCable if self._is_namespaced else ProxyCable
        self.cables: dict[tuple[str, str], Cable] = {
            pair: kind(number, *pair, ports[pair[1]]) for number, pair in enumerate(pairs)
        }
        self.urls = {name: f"http://{self.cables[OPERATOR, name].endpoint}" for name in APIS}
        self.url = self.urls[APIS[0]]
        self.milvus = f"http://{self.cables[OPERATOR, 'milvus'].endpoint}" if milvus else ""
        self._clock = folder / "clock.so"
        if compiler := shutil.which("cc"):
            command = [compiler, "-shared", "-fPIC", "-o", str(self._clock), "-x", "c", "-"]
            subprocess.run(command, input=_CLOCK.encode(), check=True)
        self._offsets: dict[str, int] = {}  # of clocks, from the next start of a machine on
        self.powered: dict[str, subprocess.Popen[bytes]] = {}
        self._lock, self._stopping = threading.RLock(), threading.Event()
        self._watcher = threading.Thread(target=self._restart_ended, daemon=True, name="restarts")
        self.messages.mkdir()

    def driver(self, clips: Sequence[Path]) -> OperationDriver:
        driver = _ObjectDriver(self.url, clips, self.media, self.headers)
        driver.objects = f"http://{self.cables[OPERATOR, 'objects'].endpoint}"
        httpx.put(f"{driver.objects}/{_BUCKET}", trust_env=False).raise_for_status()
        return driver

    def streams(self, notes: Sequence[Video]) -> list[SearchStream]:
        streams = [SearchStream(url, name, self.headers) for name, url in self.urls.items()]
        for number, (name, url) in enumerate(self.urls.items()):
            # No two machines edit the same video, so that its last edit is known.
            streams.append(EditStream(url, name, self.headers, notes[number::2]))
        return streams

    def start(self) -> None:
        for name in (*self._servers, *_PRODUCT):
            self.power_on(name)
        self._watcher.start()
        for url in self.urls.values():
            wait_until_ready(url)

    def power_on(self, name: str) -> None:
        """Start a machine, with its cables to machines that have power."""
        with self._lock:
            if self._is_namespaced:
                _ip(OPERATOR, f"netns add {name}")
                _ip(name, "link set lo up")
            for cable in self._plugged(name):
                cable.plug()
            self._launch(name)

    def power_off(self, name: str) -> None:
        """Cut a machine's power: it closes no connection, and what it had in memory is lost."""
        with self._lock:
            process = self.powered.pop(name)
            for cable in self._plugged(name):
                cable.unplug()
            send_signal(self._main_pid(process), signal.SIGKILL)
            process.wait()
            if self._is_namespaced:
                _ip(OPERATOR, f"netns del {name}")

    def take_away(self, name: str) -> None:
        """Stop a machine as an operator does: its process ends by itself first."""
        with self._lock:
            send_signal(self._main_pid(self.powered[name]), signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.powered[name].wait(_STOP_SECONDS)
            self.power_off(name)

    def kill_all(self) -> None:
        """Cut the power of all machines but the S3 server, whose objects are in memory; start them in reverse order.

        From then on, their clocks differ by a minute.
        """
        self._offsets = _OFFSETS
        names = [name for name in self.powered if name != "objects"]
        for name in names:
            self.power_off(name)
        for name in reversed(names):
            self.power_on(name)

    def stop(self) -> None:
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for name in reversed(list(self.powered)):
            self.power_off(name)

    @contextmanager
    def catalog(self) -> Iterator[CatalogReader]:
        with closing(psycopg.connect(self._postgres_url, port=self._postgres_port)) as connection:
            yield CatalogReader(connection)

    def _environment(self, name: str) -> dict[str, str]:
        home = self._folder / "machines" / name
        home.mkdir(parents=True, exist_ok=True)
        variables = {"TMPDIR": str(home), "HOME": str(home), "NO_PROXY": "*"}
        if self._clock.exists():
            variables |= {"LD_PRELOAD": str(self._clock), "CLOCK_OFFSET": str(self._offsets.get(name, 0))}
        if name in self._servers:
            return process_environment(self.faults, variables)
        reach = {server: cable.endpoint for (client, server), cable in self.cables.items() if client == name}
        variables |= self.settings() | _OBJECT_STORE
        variables["AWS_ENDPOINT_URL"] = f"http://{reach['objects']}"
        variables["CINESTRATA_DATA_DIR"], variables["CINESTRATA_SOURCES"] = str(self.data), self.root
        variables["CINESTRATA_DATABASE_URL"] = f"postgresql://postgres@{reach['postgres']}/postgres"
        variables["CINESTRATA_REDIS_URL"] = f"redis://{reach['redis']}/0"
        if name in APIS:
            variables["CINESTRATA_API_KEY"] = self.headers["X-API-Key"]
        if "milvus" in reach:
            variables["CINESTRATA_VECTOR_STORE"] = "milvus"
            variables["CINESTRATA_MILVUS__URI"] = f"http://{reach['milvus']}"
        return process_environment(self.faults, variables)

    def _plugged(self, name: str) -> list[Cable]:
        """List a machine's cables to machines that have power."""
        powered = {*self.powered, OPERATOR}
        others = [(cable, {*cable.ends} - {name}) for cable in self.cables.values()]
        return [cable for cable, other in others if len(other) == 1 and other <= powered]

    def _main_pid(self, process: subprocess.Popen[bytes]) -> int:
        """Find the first process of a machine, with which all others end."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if self._is_namespaced and children.exists() and (pids := children.read_text().split()):
            return int(pids[0])
        return process.pid

    def _launch(self, name: str) -> None:
        command = self._commands[name]
        if self._is_namespaced:
            options = ("--uts", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c", _AS_MACHINE, name)
            command = ["nsenter", f"--net=/run/netns/{name}", "unshare", *options, *command]
        self.powered[name] = self.launch(command, self._environment(name))

    def _restart_ended(self) -> None:
        while not self._stopping.wait(_RESTART_SECONDS):
            with self._lock:
                for name, process in list(self.powered.items()):
                    if process.poll() is not None:
                        self._launch(name)


class _ObjectDriver(OperationDriver):
    """A driver whose videos are in the object store."""

    root = f"s3://{_BUCKET}/"
    objects = ""  # URL of the object store

    def _store(self, number: int, name: str) -> str:
        content = self._clips[number].read_bytes()
        httpx.put(f"{self.objects}/{_BUCKET}/{name}", content=content, trust_env=False).raise_for_status()
        return self.root + name


def enter_own_network() -> bool:
    """Start this command again in a network of its own, which ends with it; returns whether this process is inside.

    False if this is not permitted: it needs root.
    """
    namespaces = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    inside = ["unshare", *namespaces, "sh", "-c", _AS_NETWORK, "sh"]
    if _INSIDE not in os.environ:
        probe = [*inside, "ip", "netns", "add", "probe"]
        if os.geteuid() or subprocess.run(probe, check=False, capture_output=True).returncode:
            return False
        os.environ[_INSIDE] = "1"
        os.execvp(inside[0], [*inside, sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (no shell is wanted)
    return True


def _ip(machine: str, command: str) -> None:
    where = [] if machine == OPERATOR else ["-n", machine]
    subprocess.run(["ip", *where, *command.split()], check=True, capture_output=True)
