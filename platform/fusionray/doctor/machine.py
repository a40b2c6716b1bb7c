"""Checks of the machine: limits of processes, shared memory, disks, swap."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host

GIB = 2**30
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - asked for its size only
# Ray asks for 65,536; with a few thousand, a node of many workers runs out of sockets.
LEAST_FILES, WANTED_FILES = 4096, 65_536
# Ray's object store lies there; containers have 64 MB by default.
LEAST_SHARED, WANTED_SHARED = 128 * 2**20, 2 * GIB
# Ray refuses work when a disk is fuller than this.
FULLEST_SHARE, LEAST_FREE = 0.95, 5 * GIB
# Linux takes socket paths of 107 characters; Ray appends so many to its folder.
LONGEST_SOCKET, RAY_SUFFIX = 107, len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
SWAPPED_SHARE = 0.2


def check_open_files(host: Host) -> Iterator[Finding]:
    """Look at the number of files that a process may open."""
    number = host.open_files()
    evidence = f"a process may open {'any number of' if number < 0 else number} files"
    remedy = f"run `ulimit -n {WANTED_FILES}` before Ray starts, or set LimitNOFILE, or nofile in limits.conf"
    if 0 <= number < WANTED_FILES:
        severe = number < LEAST_FILES
        yield Finding("open files", "error" if severe else "note", evidence, remedy, "fix setting")
    else:
        yield Finding("open files", "ok", evidence)


def check_shared_memory(host: Host) -> Iterator[Finding]:
    """Look at /dev/shm, in which Ray keeps objects and PyTorch its tensors between processes."""
    total, free = host.space(SHARED_MEMORY)
    evidence = f"{SHARED_MEMORY} has {total / GIB:.2f} GiB, {free / GIB:.2f} of them free"
    remedy = "start the container with --shm-size=2g or more (Kubernetes: an emptyDir of medium Memory at /dev/shm)"
    if total >= WANTED_SHARED:
        yield Finding("shared memory", "ok", evidence)
    else:
        yield Finding("shared memory", "error" if total < LEAST_SHARED else "warning", evidence, remedy, "fix setting")


def check_disk(host: Host) -> Iterator[Finding]:
    """Look at the disk of Ray's temporary folder, and at the length of its path."""
    folder = host.environment.get("RAY_TMPDIR") or host.environment.get("TMPDIR") or tempfile.gettempdir()
    total, free = host.space(folder)
    share = 1 - free / max(1, total)
    evidence = f"{folder} has {free / GIB:.1f} GiB free, {share:.0%} are used"
    remedy = "free some space, or let RAY_TMPDIR name a folder of a larger disk"
    if share > FULLEST_SHARE:
        yield Finding("disk", "error", f"{evidence}; Ray stops work above {FULLEST_SHARE:.0%}", remedy, "fix setting")
    elif free < LEAST_FREE:
        yield Finding("disk", "warning", evidence, remedy, "fix setting")
    else:
        yield Finding("disk", "ok", evidence)
    if len(folder) + RAY_SUFFIX > LONGEST_SOCKET:
        longest = LONGEST_SOCKET - RAY_SUFFIX
        evidence = f"RAY_TMPDIR or TMPDIR, {folder}, has {len(folder)} characters"
        remedy = f"let RAY_TMPDIR name a folder of at most {longest}: paths of sockets may have {LONGEST_SOCKET}"
        yield Finding("temporary folder", "error", evidence, remedy, "fix setting")


def check_swap(host: Host) -> Iterator[Finding]:
    """Look whether memory was swapped out."""
    lines = (line.partition(":") for line in (host.read("/proc/meminfo") or "").splitlines())
    kib = {name: int(rest.split()[0]) for name, _, rest in lines if rest.split()}
    total = kib.get("SwapTotal", 0)
    used = total - kib.get("SwapFree", total)
    evidence = f"{used / 2**20:.1f} of {total / 2**20:.1f} GiB swap are in use" if total else "there is no swap"
    if total and used > SWAPPED_SHARE * total:
        remedy = "end what fills the memory; a training that is swapped takes many times as long"
        yield Finding("swap", "warning", evidence, remedy, "restart process")
    else:
        yield Finding("swap", "ok", evidence)
