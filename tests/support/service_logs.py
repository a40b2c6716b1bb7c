"""The logs that a service really writes: those of HAProxy, of Ray and Ray Serve, and of its own processes."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

# HAProxy sends its log by UDP; a test may read it long after.
BUFFER_BYTES = 4 * 2**20


@dataclass
class ServiceLogs:
    """The folder of Ray's logs, and the socket to which HAProxy sends its own; `proxy` is what was read from it."""

    folder: Path
    listener: socket.socket
    proxy: str = field(default="", init=False)

    def read(self) -> tuple[str, str]:
        """Return what HAProxy has logged, and what all processes of Ray have."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.proxy += self.listener.recv(65_536).decode("latin-1") + "\n"
        files = [path for path in self.folder.rglob("logs/**/*") if path.is_file() and not path.is_symlink()]
        return self.proxy, "\n".join(path.read_text("utf-8", "replace") for path in files)

    def wait_for_lines(self, of_proxy: str, of_replica: str, number: int) -> tuple[str, str]:
        """Read the logs once HAProxy's has a line with `of_proxy`, and Ray's `number` lines with `of_replica`."""
        deadline = time.monotonic() + 15
        while True:
            proxy, replicas = self.read()
            if of_proxy in proxy and replicas.count(of_replica) >= number:
                return proxy, replicas
            assert time.monotonic() < deadline, (proxy[-3000:], replicas[-3000:])
            time.sleep(0.1)


def open_listener() -> socket.socket:
    """Open the socket to which HAProxy sends its log."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    listener.bind(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener
