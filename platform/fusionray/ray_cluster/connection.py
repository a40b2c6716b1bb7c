"""The connection to a Ray cluster: one that exists, or a new one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from fusionray.environment import (
    HTTP_HOST_VARIABLE,
    PRIVATE_CLUSTER_VARIABLE,
    SERVES,
    WORKER_VARIABLE,
    cluster_address,
    make_proxy_folder,
    passed_on,
)
from fusionray.errors import ClusterUnavailable
from fusionray.hardware.processes import find_processes
from fusionray.ray_cluster.light_head import light_head

# Ray counts logical CPUs: two more than the machine has let data tasks run at the same time as one worker per core.
SPARE_CPUS = 2
# Part of the message with which Ray gives up its own start.
START_TIMEOUT = "timed out during startup"
FALLBACK_PORT_VARIABLE = "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"
# Above the ports of Ray's workers (10002 to 19999), below those that Linux gives to connections (from 32768).
FREE_PORTS = (20000, 32000)
POLL_SECONDS = 0.2
# Workers of a cluster that has ended have this long to end, too.
END_SECONDS = 5.0
WORKER_TITLE = "ray::"
# A wait for CPUs that takes longer is told.
QUIET_SECONDS = 5.0


class WorkerCounts(Protocol):
    """The settings of training workers that decide whether they use GPUs."""

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        ...

    @property
    def min_workers(self) -> int | None:
        """Fewest workers that may continue when nodes are lost; None: all."""
        ...

    @property
    def device(self) -> str:
        """`auto`, `cpu` or `cuda`."""
        ...


# How to get the cluster of the surrounding `cluster` block, until something needs it.
_pending: Callable[[], None] | None = None
# Where HAProxy of a cluster on this machine keeps its files.
_proxy_folder: Path | None = None


@contextlib.contextmanager
def cluster(address: str | None = None, http_host: str | None = None) -> Iterator[None]:
    """Provide a Ray cluster for the length of a `with` block.

    With an address it is the cluster there, or that of a surrounding Ray job; without, an existing connection of this
    process, or a new cluster on this machine, which stops at the end of the block. `http_host`: the address on which a
    service in that new cluster will listen. Nothing starts before the block calls `require_cluster`: wrong input is
    refused at once.
    """
    global _pending, _proxy_folder  # noqa: PLW0603 - Ray has one connection a process
    if is_connected():
        yield
        return
    chosen = cluster_address(address)
    _pending = partial(connect, chosen) if chosen else partial(start_local, http_host)
    try:
        yield
    finally:
        _pending = None
        if is_connected():
            disconnect()
        if _proxy_folder is not None:
            shutil.rmtree(_proxy_folder, ignore_errors=True)
            _proxy_folder = None
        for name in (HTTP_HOST_VARIABLE, WORKER_VARIABLE):
            os.environ.pop(name, None)


def is_connected() -> bool:
    """Return whether this process is connected to a Ray cluster."""
    # Another thread may be importing Ray just now: then the module is there, but its functions are not yet.
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return is_initialized is not None and is_initialized()


def require_cluster() -> None:
    """Connect to the cluster of the surrounding `cluster` block, or start it; do nothing if this process is connected.

    Raises: ClusterUnavailable if there is no such block, or the address does not answer.
    """
    global _pending
    if is_connected():
        return
    if _pending is None:
        raise ClusterUnavailable("no Ray cluster: call this inside `with cluster():`, or call ray.init() first")
    start, _pending = _pending, None
    # `ray.init` replaces the handler of SIGTERM, also one that the program has set.
    former = signal.getsignal(signal.SIGTERM)
    start()
    if callable(former) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, former)


def connect(address: str) -> None:
    import ray

    # A command that a process of a private cluster runs inherits what is true of that one, and would end its workers.
    for name in (PRIVATE_CLUSTER_VARIABLE, HTTP_HOST_VARIABLE, WORKER_VARIABLE):
        os.environ.pop(name, None)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.WARNING,
            # Nodes of a cluster were started elsewhere; a local Ray inherits the variables of this process.
            runtime_env={"env_vars": passed} if (passed := passed_on()) else None,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ClusterUnavailable(
            f"no Ray cluster at {address} ({reason}); check the address, and RAY_AUTH_MODE and its token on both sides"
        ) from None


def start_local(http_host: str | None = None) -> None:
    import ray

    global _proxy_folder  # noqa: PLW0603 - see `cluster`
    _proxy_folder = make_proxy_folder()
    # Two clusters on a machine would share the fixed port of Ray Serve's own proxy, and answer each other's requests.
    os.environ[FALLBACK_PORT_VARIABLE] = str(find_free_port())
    # The processes of the cluster inherit them.
    os.environ[PRIVATE_CLUSTER_VARIABLE] = uuid.uuid4().hex
    if http_host:
        os.environ[HTTP_HOST_VARIABLE] = http_host
        os.environ[WORKER_VARIABLE] = SERVES
    cores = len(os.sched_getaffinity(0))
    try:
        with light_head():
            ray.init(
                address="local",
                num_cpus=cores + SPARE_CPUS,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                object_store_memory=choose_store_bytes(),
            )
    except Exception as error:
        # Ray waits 30 s, which cannot be set, and has no class for this error (ray/_private/node.py).
        if START_TIMEOUT not in str(error):
            raise
        load = os.getloadavg()[0]
        raise ClusterUnavailable(
            f"Ray did not start within 30 s: {load:.0f} processes want the {cores} CPUs of this machine; try again, or "
            "wait until other work has ended"
        ) from None


def disconnect() -> None:
    """Leave the cluster; if this process started it, end it with all its workers."""
    import ray

    ray.shutdown()
    own = os.environ.pop(PRIVATE_CLUSTER_VARIABLE, None)
    deadline = time.monotonic() + END_SECONDS
    while own and (workers := find_processes(WORKER_TITLE, variable=f"{PRIVATE_CLUSTER_VARIABLE}={own}")):
        if time.monotonic() > deadline:
            # Seen: a worker that waits for a lock of its own in its exit handlers, for ever.
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def find_free_port(address: str = "127.0.0.1") -> int:
    """Find a TCP port of an own address on which nothing listens, and which the kernel gives to no connection soon.

    What binds it may take seconds to start. A port of the kernel's own range would be gone by then, now and then: Ray's
    processes connect to each other all the time.
    """
    first, last = FREE_PORTS
    for port in (first + secrets.randbelow(last - first) for _ in range(100)):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind((address, port))
            return port
    raise ClusterUnavailable(
        f"no free port of {address} among a hundred from {first} to {last}; end what listens there"
    )


def choose_store_bytes() -> int:
    """Choose the bytes of the local object store: encoded rows are small, and containers have little shared memory."""
    shared = os.statvfs("/dev/shm")  # noqa: S108 - asked for its size only
    free = shared.f_bavail * shared.f_frsize
    return int(min(2 * 2**30, max(100 * 2**20, free * 0.5)))


def wait_for_cpus(need: float, timeout_seconds: float = 120.0) -> float:
    """Wait until Ray has `need` free CPUs, or for the timeout; return the number of free CPUs.

    The previous stage releases its CPUs a moment after it ends; other trials of a search hold theirs for longer.
    """
    import ray

    begun, told = time.monotonic(), False
    possible = float(ray.cluster_resources().get("CPU", 0.0))
    while True:
        free = float(ray.available_resources().get("CPU", 0.0))
        waited = time.monotonic() - begun
        if free >= need or possible < need or waited > timeout_seconds:
            return free
        if waited > QUIET_SECONDS and not told:
            told = True
            print(f"waiting for {need:g} CPUs, of which {free:g} are free", file=sys.stderr, flush=True)
        time.sleep(POLL_SECONDS)


def require_cpus(num_workers: int, cpus_per_worker: float, *, setting: str = "workers.num_workers") -> None:
    """Wait until every worker of a stage can have its CPUs; `setting` is the one that `num_workers` comes from.

    Raises: ClusterUnavailable if the cluster cannot provide them; Ray itself would wait without limit.
    """
    require_cluster()
    need = num_workers * cpus_per_worker
    free = wait_for_cpus(need)
    if free < need:
        raise ClusterUnavailable(
            f"{setting}={num_workers} x cpus_per_worker={cpus_per_worker:g} needs {need:g} free "
            f"CPUs, and the cluster has {free:g}; ask for fewer, or lower workers.cpus_per_worker"
        )


def decide_use_gpu(workers: WorkerCounts) -> bool:
    """Return whether each worker gets a GPU. Counts all GPUs of the cluster, free or not.

    Tells if there are GPUs, but not enough of them.

    Raises: ClusterUnavailable if `workers.device` is cuda and there are not enough GPUs.
    """
    gpus = count_gpus()
    needed = workers.min_workers or workers.num_workers
    if workers.device == "cuda" and gpus < needed:
        raise ClusterUnavailable(
            f"workers.device=cuda needs {needed} GPUs, but the cluster has {gpus:g}; use fewer workers, or auto"
        )
    if workers.device == "auto" and 0 < gpus < needed:
        print(
            f"{needed} workers need a GPU each, and the cluster has {gpus:g}: they compute on CPUs; set "
            f"workers.num_workers={int(gpus)} to use the GPUs",
            file=sys.stderr,
            flush=True,
        )
    return workers.device != "cpu" and gpus >= needed


def count_gpus() -> float:
    """Count the GPUs of the cluster, free or not."""
    import ray

    require_cluster()
    return float(ray.cluster_resources().get("GPU", 0.0))
