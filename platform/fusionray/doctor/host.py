"""The machine as checks see it: files, commands, variables, names. Tests put another one in its place."""

from __future__ import annotations

import ipaddress
import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fusionray.hardware.network import list_addresses

# A driver that hangs answers nothing, for ever.
COMMAND_SECONDS = 30.0


@dataclass(frozen=True)
class HostOptions:
    """What the user says: expected GPUs (None: whatever is there), storages to try, training scripts to read."""

    gpus: int | None = None
    storages: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()


@dataclass(eq=False)
class Host:
    """A machine whose files lie below `root`."""

    options: HostOptions = field(default_factory=HostOptions)
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def read(self, path: str) -> str | None:
        """Read a text file, by its path on the machine; None if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None

    def read_bytes(self, path: str) -> bytes | None:
        """Read a file of bytes; None if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_bytes()
        except OSError:
            return None

    def list(self, pattern: str) -> list[str]:
        """List the paths that match a pattern, such as /sys/class/net/*."""
        return sorted(f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/")))

    def run(self, command: Sequence[str]) -> str | None:
        """Run a command and return what it prints; None if it is not there, fails, or does not answer."""
        if shutil.which(command[0], path=self.environment.get("PATH")) is None:
            return None
        try:
            done = subprocess.run(  # noqa: S603 - names of the checks
                list(command), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
                env=dict(self.environment),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def resolve(self) -> tuple[str, str | None]:
        """Return the name of the machine, and the address that its name has here; None if it has none."""
        name = socket.gethostname()
        try:
            return name, socket.gethostbyname(name)
        except OSError:
            return name, None

    def is_here(self, name: str) -> bool:
        """Tell whether a name or an address is one of this machine."""
        try:
            found = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
        except OSError:
            return False
        own = {address for _, address in list_addresses()}
        return any(address.is_loopback or address in own for address in found)

    def cpus(self) -> tuple[int, int]:
        """Return how many CPUs the machine has, and how many this process may use."""
        count = os.cpu_count() or 1
        # macOS binds no process to CPUs.
        return count, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count

    def open_files(self) -> int:
        """Return how many files a process may open; -1: any number."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return -1 if soft == resource.RLIM_INFINITY else soft

    def locked_memory(self) -> int:
        """Return the bytes that a process may lock in memory; -1: any number."""
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return -1 if soft == resource.RLIM_INFINITY else soft

    def space(self, path: str) -> tuple[int, int]:
        """Return total and free bytes of the file system of a path."""
        found = os.statvfs(self.root / path.lstrip("/"))
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    @cached_property
    def num_gpus(self) -> int:
        """Count the NVIDIA GPUs by their device files."""
        return len(self.list("/dev/nvidia[0-9]*"))

    @cached_property
    def gpu_query(self) -> str | None:
        """What `nvidia-smi -q` prints, asked once: it takes seconds on eight GPUs."""
        return self.run(("nvidia-smi", "-q"))
