"""Checks of direct ways on PCIe: between GPUs, and from a GPU to an InfiniBand card.

Not measured on a GPU yet. Sources: the troubleshooting chapter of NCCL's user guide (PCI access control services);
PCI Express base specification, sections 7.5.3 and 7.7.8, for the registers; docs.nvidia.com/cuda/gpudirect-rdma.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host
from fusionray.hardware.topology import read_gpus

BRIDGE = "0x0604"
# In a device's configuration space: where the capabilities begin, and what those of interest are called.
FIRST_CAPABILITY, EXPRESS, DOWNSTREAM_PORT = 0x34, 0x10, 6
FIRST_EXTENDED, ACCESS_CONTROL = 0x100, 0x000D
# Bits by which a port sends requests between its devices up to the CPU: request and completion redirect, and
# upstream forwarding.
REDIRECTS = 0b11100
TRANSLATED = ("DMA", "DMA-FQ")
MODULES = ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem")
# The first Linux whose InfiniBand takes memory of other devices as dma-buf.
DMABUF_LINUX = (5, 12)


def check_peer_access(host: Host) -> Iterator[Finding]:
    """Look whether PCIe switches or the IOMMU send what GPUs copy to each other through the CPU."""
    if not host.num_gpus or (host.num_gpus < 2 and not host.list("/sys/class/infiniband/*")):
        return
    bridges = [
        path.rpartition("/")[2]
        for path in host.list("/sys/bus/pci/devices/*")
        if (host.read(f"{path}/class") or "").startswith(BRIDGE)
    ]
    redirecting = [bridge for bridge in bridges if redirects(host.read_bytes(f"/sys/bus/pci/devices/{bridge}/config"))]
    if redirecting:
        evidence = (
            f"access control services (ACS) are on at {len(redirecting)} ports of PCIe switches: {redirecting[0]}"
        )
        remedy = (
            "turn ACS off in the BIOS, or at each boot `setpci -s PORT ECAP_ACS+0x6.w=0000`, not on virtual machines"
        )
        yield Finding("PCIe ACS", "warning", evidence, remedy, "fix setting")
    devices = host.root / "sys/bus/pci/devices"
    kinds = {
        gpu.address: (host.read(f"/sys/bus/pci/devices/{gpu.address}/iommu_group/type") or "").strip()
        for gpu in read_gpus(devices, frozenset())
    }
    translated = [address for address, kind in kinds.items() if kind in TRANSLATED]
    if translated:
        evidence = f"the IOMMU translates the addresses of {len(translated)} GPUs: {translated[0]}"
        remedy = (
            "boot with iommu=pt, which lets devices reach each other directly; virtual machines may need it as it is"
        )
        yield Finding("IOMMU", "note", evidence, remedy, "reboot")


def redirects(config: bytes | None) -> bool:
    """Tell whether a bridge is a port of a PCIe switch that redirects what its devices exchange.

    `config`: its configuration space; only root may read more than the first 64 bytes of it.
    """
    if config is None or len(config) <= FIRST_EXTENDED or not is_downstream(config):
        return False
    at = FIRST_EXTENDED
    # Each entry: 16 bits of identity, 4 of version, 12 that say where the next one is.
    for _ in range(len(config) // 4):
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACCESS_CONTROL:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & REDIRECTS)
        at = header >> 20
        if at < FIRST_EXTENDED:
            break
    return False


def is_downstream(config: bytes) -> bool:
    """Tell whether it is a switch's port: through a port of the CPU, all goes up there in any case."""
    at = config[FIRST_CAPABILITY]
    for _ in range(48):
        if not at:
            break
        if config[at] == EXPRESS:
            return config[at + 2] >> 4 == DOWNSTREAM_PORT
        at = config[at + 1]
    return False


def check_gpudirect(host: Host) -> Iterator[Finding]:
    """Look whether InfiniBand cards can read the memory of GPUs."""
    if not host.num_gpus or not host.list("/sys/class/infiniband/*"):
        return
    loaded = [name for name in MODULES if host.list(f"/sys/module/{name}")]
    if loaded:
        yield Finding("GPUDirect RDMA", "ok", f"the module {loaded[0]} is loaded")
    elif supports_dmabuf(host):
        yield Finding("GPUDirect RDMA", "ok", "by dma-buf, of Linux and the driver's open kernel module")
    else:
        evidence = "nvidia_peermem is not loaded, and dma-buf needs Linux 5.12 and the driver's open kernel module"
        remedy = (
            "`modprobe nvidia-peermem`, and name it in /etc/modules-load.d: else all goes through the host's memory"
        )
        yield Finding("GPUDirect RDMA", "warning", evidence, remedy, "fix setting")


def supports_dmabuf(host: Host) -> bool:
    """Tell whether Linux and the driver pass the memory of a GPU on as dma-buf."""
    release = re.match(r"(\d+)\.(\d+)", host.read("/proc/sys/kernel/osrelease") or "")
    is_open = "Open Kernel Module" in (host.read("/proc/driver/nvidia/version") or "")
    is_on = host.environment.get("NCCL_DMABUF_ENABLE", "1") != "0"
    return is_open and is_on and release is not None and (int(release[1]), int(release[2])) >= DMABUF_LINUX
