"""Network interfaces of this machine, on Linux."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

# ioctl that asks for the IPv4 address of an interface, from linux/sockios.h; names have at most 15 bytes.
SIOCGIFADDR = 0x8915
IPV6_INTERFACES = Path("/proc/net/if_inet6")


def find_interface(address: str) -> str | None:
    """Return the name of the interface that has an IPv4 or IPv6 address; None if none has it, or not on Linux."""
    wanted = ipaddress.ip_address(address)
    return next((name for name, own in list_addresses() if own == wanted), None)


def list_addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Yield (interface, address): the first IPv4 address of each interface, then all IPv6 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no IPv4 address
            yield name, ipaddress.IPv4Address(answer[20:24])
    if IPV6_INTERFACES.exists():
        for line in IPV6_INTERFACES.read_text().splitlines():
            digits, *_, name = line.split()
            yield name, ipaddress.IPv6Address(int(digits, 16))
