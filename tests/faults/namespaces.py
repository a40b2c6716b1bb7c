"""Hosts on one machine: a bridge with a made-up subnet, and a network namespace for each node behind it.

Nothing is routed or forwarded: what the nodes say to each other stays on the bridge, and with it on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

from fusionray.errors import ClusterUnavailable

# Subnets 10.213.0.0/24 to 10.213.253.0/24: rarely used, and checked against the machine's addresses.
SUBNETS = "10.213"
NUM_SUBNETS = 254
COMMAND_SECONDS = 20.0
# `nsenter` instead of `ip netns exec`, which mounts another /sys: Ray would not find the memory limit of its container.
TOOLS = ("ip", "nsenter")


def can_make_namespaces() -> bool:
    """Tell whether this process may make network namespaces, by making a small network of them.

    Being root is not enough: inside containers root is often not allowed to.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):
        return False
    try:
        network = Network()
        with contextlib.closing(network):
            network.add(1)
    except ClusterUnavailable:
        return False
    return True


class Network:
    """A bridge of this machine, and the namespaces that are connected to it.

    The machine itself has the bridge's address. Names and subnet carry the pid, so that two runs do not meet.
    """

    def __init__(self) -> None:
        """Make the bridge.

        Raises: ClusterUnavailable if the tools or the rights are missing, or no subnet is free.
        """
        number = choose_subnet()
        # An interface's name may have 15 characters: fr, 7 digits of pid, 3 of subnet, a letter and the node.
        self.name = f"fr{os.getpid()}-{number}"
        self.subnet = f"{SUBNETS}.{number}"
        self.bridge = f"{self.name}b"
        self.ip = f"{self.subnet}.1"
        self.namespaces: set[int] = set()
        run_ip("link", "add", self.bridge, "type", "bridge")
        try:
            run_ip("address", "add", f"{self.ip}/24", "dev", self.bridge)
            run_ip("link", "set", self.bridge, "up")
        except ClusterUnavailable:
            self.close()
            raise

    def add(self, index: int) -> str:
        """Make the namespace of node `index` (from 1) and return its address.

        Raises: ClusterUnavailable if the rights are missing.
        """
        ip, inside, space = f"{self.subnet}.{index + 1}", self.interface(index), self.namespace(index)
        run_ip("netns", "add", space)
        self.namespaces.add(index)
        run_ip("link", "add", self.port(index), "type", "veth", "peer", "name", inside, "netns", space)
        run_ip("link", "set", self.port(index), "master", self.bridge, "up")
        run_ip("-netns", space, "address", "add", f"{ip}/24", "dev", inside)
        run_ip("-netns", space, "link", "set", inside, "up")
        run_ip("-netns", space, "link", "set", "lo", "up")
        return ip

    def enter(self, index: int) -> list[str]:
        """Return the words that, put before a command, run it inside the namespace, under the same pid."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(index)}", "--"]

    def cut(self, index: int) -> None:
        """Drop every packet from and to the node; its connections are not closed."""
        run_ip("link", "set", self.port(index), "down")

    def mend(self, index: int) -> None:
        """Forward packets again."""
        run_ip("link", "set", self.port(index), "up")

    def close(self) -> None:
        """Remove namespaces and bridge; processes that still run inside lose their network."""
        with contextlib.ExitStack() as stack:
            stack.callback(run_ip, "link", "delete", self.bridge)
            for index in self.namespaces:
                stack.callback(run_ip, "netns", "delete", self.namespace(index))
                # Removing the namespace is not enough: its interface exists until the last process inside ends.
                stack.callback(run_ip, "link", "delete", self.port(index))
        self.namespaces.clear()

    def namespace(self, index: int) -> str:
        return f"{self.name}s{index}"

    def interface(self, index: int) -> str:
        """Name the interface by which a node reaches the others: its end of the cable, or for the head the bridge."""
        return f"{self.name}n{index}" if index else self.bridge

    def port(self, index: int) -> str:
        """Name the bridge's end of the node's cable."""
        return f"{self.name}p{index}"


def choose_subnet() -> int:
    """Return the number of a subnet that no interface here uses, beginning at one that depends on the pid.

    Raises: ClusterUnavailable if all are used.
    """
    known = run_ip("-o", "-4", "address", "show") + run_ip("-4", "route", "show", "table", "all")
    for offset in range(NUM_SUBNETS):
        number = (os.getpid() + offset) % NUM_SUBNETS
        if f"{SUBNETS}.{number}." not in known:
            return number
    raise ClusterUnavailable(f"every subnet from {SUBNETS}.0.0/24 on is in use; remove bridges that runs left behind")


def run_ip(*arguments: str) -> str:
    """Run `ip` and return what it printed.

    Raises: ClusterUnavailable if it is missing, fails or hangs.
    """
    command = ["ip", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        raise ClusterUnavailable(f"{' '.join(command)}: {error.stderr.strip()}; namespaces need root") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterUnavailable(f"{' '.join(command)}: {error}; namespaces need iproute2") from None
    return done.stdout
