"""On which addresses processes listen, as `ss -ltnp` would say."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import struct
from collections.abc import Iterable
from pathlib import Path

LISTENING = "0A"
SOCKET = re.compile(r"socket:\[(\d+)\]")


def list_listeners(pids: Iterable[int]) -> set[tuple[str, int]]:
    """List the addresses and TCP ports on which processes listen."""
    own = {inode for pid in pids for inode in read_sockets(pid)}
    return {address for inode, address in read_table().items() if inode in own}


def read_sockets(pid: int) -> set[str]:
    """Read the inodes of the sockets of a process; none if it has ended."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if match := SOCKET.fullmatch(str(entry.readlink())):
                    found.add(match[1])
    return found


def read_table() -> dict[str, tuple[str, int]]:
    """Read the listening TCP sockets of this network namespace, by inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                host, port = fields[1].split(":")
                # Words of 32 bits, each in the machine's order of bytes.
                packed = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
                address = ipaddress.ip_address(packed)
                mapped = getattr(address, "ipv4_mapped", None)
                found[fields[9]] = (str(mapped or address), int(port, 16))
    return found
