"""Check which network card each GPU has near it, and that both belong to one NUMA node.

Not measured on a GPU yet: the tests have recorded outputs. Source: the legend that `nvidia-smi topo -m` prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host
from fusionray.hardware.topology import parse_cpus

# The ways between two devices, the shortest first: one PCIe bridge, several, the CPU's host bridge, several host
# bridges of a NUMA node, and the link between sockets.
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
NEAR = ("PIX", "PXB")
UNDERLINED = re.compile(r"\x1b\[[0-9;]*m")
NIC_LEGEND = re.compile(r"^\s+(NIC\d+): (\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class GpuPlace:
    """Where a GPU is: its NUMA nodes (empty: unknown), and the distance of each network card."""

    name: str
    numa_nodes: frozenset[int]
    cards: Mapping[str, str]

    def find_nearest(self) -> tuple[str, list[str]]:
        """Return the shortest distance, and the cards that have it."""
        distance = min(self.cards.values(), key=DISTANCES.index)
        return distance, [card for card, each in self.cards.items() if each == distance]


def check_gpu_topology(host: Host) -> Iterator[Finding]:
    """Look which network card is near each GPU, and whether both are at one socket."""
    answer = host.run(("nvidia-smi", "topo", "-m")) if host.num_gpus else None
    places = parse_topology(answer or "")
    unknown = [place.name for place in places if not place.numa_nodes]
    if unknown and len(host.list("/sys/devices/system/node/node[0-9]*")) > 1:
        remedy = "let the BIOS, or the hypervisor, tell it: workers cannot be bound to the cores near their GPU"
        evidence = f"the NUMA node of {', '.join(unknown)} is unknown"
        yield Finding("GPU topology", "note", evidence, remedy, "fix setting")
    paired = [place for place in places if place.cards]
    if not paired:
        return
    pairs = {place.name: place.find_nearest() for place in paired}
    text = ", ".join(f"{gpu} - {' '.join(cards)} ({distance})" for gpu, (distance, cards) in pairs.items())
    faults = list(judge_places(host, paired))
    yield from faults
    yield Finding("GPU topology", "note" if faults else "ok", f"nearest network cards: {text}")


def parse_topology(text: str) -> list[GpuPlace]:
    """Parse the matrix of `nvidia-smi topo -m`; older drivers name the cards in its head, newer ones in a legend."""
    text = UNDERLINED.sub("", text)
    lines = [[cell.strip() for cell in line.split("\t")] for line in text.splitlines()]
    head = next((cells for cells in lines if "CPU Affinity" in cells), None)
    if head is None:
        return []
    legend = dict(NIC_LEGEND.findall(text))
    devices = head[1 : head.index("CPU Affinity")]
    places = []
    for cells in lines:
        if not cells[0].startswith("GPU"):
            continue
        ways = dict(zip(devices, cells[1:], strict=False))
        cards = {
            legend.get(device, device): way
            for device, way in ways.items()
            if not device.startswith("GPU") and way in DISTANCES
        }
        # After the devices come the CPUs, then the NUMA node.
        numa = cells[len(devices) + 2] if len(cells) > len(devices) + 2 else ""
        known = re.fullmatch(r"[\d,-]+", numa) is not None
        places.append(GpuPlace(cells[0], frozenset(parse_cpus(numa)) if known else frozenset(), cards))
    return places


def judge_places(host: Host, places: list[GpuPlace]) -> Iterator[Finding]:
    """Find GPUs that reach a network card only through the other socket."""
    near = [place.name for place in places if place.find_nearest()[0] in NEAR]
    for place in places:
        distance, cards = place.find_nearest()
        if distance == "SYS" and near:
            evidence = (
                f"{place.name} reaches {cards[0]}, as any network card, over the other socket; {near[0]} is near one"
            )
            remedy = "move a card to its socket, or keep multi-node jobs off this GPU; check that no card is missing"
            yield Finding("GPU topology", "warning", evidence, remedy, "isolate node")
            continue
        nodes = {card: (host.read(f"/sys/class/infiniband/{card}/device/numa_node") or "").strip() for card in cards}
        # -1: the system does not know it.
        strange = {card: node for card, node in nodes.items() if node.isdigit() and int(node) not in place.numa_nodes}
        if place.numa_nodes and strange and len(strange) == len(cards):
            card, node = next(iter(strange.items()))
            own = ", ".join(map(str, sorted(place.numa_nodes)))
            evidence = f"{place.name} is of NUMA node {own}, its nearest network card, {card}, of {node}"
            remedy = "check the slots and the BIOS's NUMA settings: what it sends crosses the sockets"
            yield Finding("GPU topology", "warning", evidence, remedy, "fix setting")
