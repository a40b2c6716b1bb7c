"""NVLink, fabric, topology and PCIe, by what tools print: made up after the formats of drivers 470, 550 and 570."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fusionray.doctor.finding import Finding
from fusionray.doctor.gpu import gpu_topology, gpus, nvlink, pcie
from fusionray.doctor.gpu.smi import parse_gpus, read_firmware
from tests.doctor.broken_host import BrokenHost, build, record_tools, seen

H100 = "NVIDIA H100 80GB HBM3"
TWO_GPUS = {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""}


def write_links(*gpus_of: list[str], name: str = H100) -> str:
    """Write what `nvidia-smi nvlink --status` prints; each GPU has its links, such as `26.562 GB/s`."""
    lines = []
    for number, links in enumerate(gpus_of):
        lines.append(f"GPU {number}: {name} (UUID: GPU-0f5c6a1e-8f3b-4f7e-9d0a-00000000000{number})")
        lines += [f"\t Link {link}: {speed}" for link, speed in enumerate(links)]
    return "\n".join([*lines, ""])


def with_nvlink(root: Path, status: str, errors: str = "") -> BrokenHost:
    tools = record_tools(root, {"nvidia-smi nvlink --status": status, "nvidia-smi nvlink -e": errors})
    return build(root, TWO_GPUS, PATH=tools)


FULL = ["26.562 GB/s"] * 18


@pytest.mark.parametrize(
    ("status", "severity", "action", "told"),
    [
        (write_links(FULL, FULL), "ok", "none", "each GPU has 18 active links, 478 GB/s"),
        (
            write_links(FULL, [*FULL[:16], "<inactive>", "<inactive>"]),
            "error",
            "isolate node",
            "GPU 1: 16 active links, 425 GB/s; GPU 0 has 18 active links, 478 GB/s, inactive: 16, 17",
        ),
        # A link that is missing altogether is not named.
        (write_links(FULL[:12], FULL), "error", "isolate node", "GPU 0: 12 active links, 319 GB/s; GPU 1 has 18"),
        (write_links(FULL, ["25.000 GB/s"] * 18), "warning", "reset device", "GPU 1: 18 active links, 450 GB/s"),
        (write_links(["<inactive>"] * 4, ["<inactive>"] * 4), "note", "fix setting", "no link is active"),
        (
            f"GPU 0: {H100} (UUID: GPU-1)\n\t NVML: Unable to retrieve NVLink information as all links are inActive\n",
            "note",
            "fix setting",
            "no link is active",
        ),
    ],
)
def test_links_are_compared_with_those_of_the_siblings(
    tmp_path: Path, status: str, severity: str, action: str, told: str
) -> None:
    (found,) = nvlink.check_nvlink(with_nvlink(tmp_path, status))
    assert (found.severity, found.action) == (severity, action)
    assert told in found.evidence


def test_gpus_without_nvlink_and_of_two_models_are_sound(tmp_path: Path) -> None:
    tesla = "GPU 0: Tesla T4 (UUID: GPU-1)\nGPU 1: Tesla T4 (UUID: GPU-2)\n"
    assert list(nvlink.check_nvlink(with_nvlink(tmp_path, tesla))) == []
    mixed = write_links(FULL) + write_links(["25.000 GB/s"] * 12, name="NVIDIA A100-SXM4-80GB").replace(
        "GPU 0", "GPU 1"
    )
    assert [found.severity for found in nvlink.check_nvlink(with_nvlink(tmp_path, mixed))] == ["ok"]
    alone = build(tmp_path / "alone", {"dev/nvidia0": ""}, PATH=str(tmp_path / "tools"))
    assert list(nvlink.check_nvlink(alone)) == []


def test_errors_of_links_are_counted_but_not_bits_that_were_corrected(tmp_path: Path) -> None:
    errors = f"""\
GPU 0: {H100} (UUID: GPU-1)
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 0
\t Link 0: CRC Errors: 0
\t Link 0: FEC Errors - 0: 987654321
GPU 1: {H100} (UUID: GPU-2)
\t Link 3: Replay Errors: 12
\t Link 3: Recovery Errors: 2
\t Link 3: CRC Errors: 0
"""
    ok, found = nvlink.check_nvlink(with_nvlink(tmp_path, write_links(FULL, FULL), errors))
    assert (ok.severity, found.severity, found.action) == ("ok", "warning", "reset device")
    assert found.evidence == "GPU 1: link 3: 12 Replay Errors; link 3: 2 Recovery Errors"


def write_query(*gpus_of: Mapping[str, str]) -> str:
    """Write what `nvidia-smi -q` prints, as far as checks read it."""
    text = """
==============NVSMI LOG==============

Timestamp                                 : Mon Nov 17 10:12:01 2025
Driver Version                            : 550.90.07
CUDA Version                              : 12.4

Attached GPUs                             : 2
"""
    for number, fields in enumerate(gpus_of):
        text += f"""\
GPU 00000000:{number + 1:X}9:00.0
    Product Name                          : {fields.get("name", H100)}
    Product Brand                         : NVIDIA
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    VBIOS Version                         : {fields.get("vbios", "96.00.89.00.01")}
    Fabric
        State                             : {fields.get("state", "Completed")}
        Status                            : {fields.get("status", "Success")}
        CliqueId                          : 0
    Remapped Rows
        Correctable Error                 : 0
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
        Pending                           : No
    GPU Memory Power Readings{" "}
        Power Draw                        : N/A
    Processes                             : None

"""
    return text


def test_values_of_a_query_are_read_by_section() -> None:
    first, second = parse_gpus(write_query({}, {"vbios": "96.00.89.00.05"}))
    assert (first.address, second.address) == ("00000000:19:00.0", "00000000:29:00.0")
    assert first.values["MIG Mode/Current"] == "Disabled"
    assert first.values["Remapped Rows/Bank Remap Availability Histogram/Max"] == "2560 bank(s)"
    assert first.values["Remapped Rows/Pending"] == "No"
    assert first.get("Fabric/Health", "GPU Memory Power Readings/Power Draw", "VBIOS Version") == "96.00.89.00.01"
    assert second.number("Remapped Rows/Bank Remap Availability Histogram/Max") == 2560


def with_query(root: Path, text: str, files: Mapping[str, str] | None = None, **variables: str) -> BrokenHost:
    return build(root, {**TWO_GPUS, **(files or {})}, PATH=record_tools(root, {"nvidia-smi -q": text}), **variables)


def test_gpus_of_one_model_have_one_vbios(tmp_path: Path) -> None:
    host = with_query(tmp_path, write_query({}, {"vbios": "96.00.89.00.05"}))
    (found,) = gpus.check_vbios(host)
    assert (found.severity, found.action) == ("warning", "fix setting")
    assert found.evidence == f"{H100}: 96.00.89.00.01 on GPU 0; 96.00.89.00.05 on GPU 1"
    assert read_firmware(host) == {
        "NVIDIA driver": "550.90.07",
        f"VBIOS of {H100}": "96.00.89.00.01, 96.00.89.00.05",
    }
    for text in (write_query({}, {}), write_query({}, {"name": "NVIDIA L4", "vbios": "95.04.29.00.06"})):
        assert list(gpus.check_vbios(with_query(tmp_path, text))) == []


SWITCH = {"dev/nvidia-nvswitch0": "", "dev/nvidia-nvswitchctl": ""}
RUNNING = {"proc/812/comm": "nv-fabricmanage\n"}


@pytest.mark.parametrize(
    ("gpu", "files", "variables", "wanted"),
    [
        # In the order of what may be wrong: nothing; no switch; it does not run; it runs, but not for these GPUs.
        ({}, {**SWITCH, **RUNNING}, {}, [("ok", "none")]),
        ({"state": "N/A", "status": "N/A"}, {}, {}, []),
        (
            {"state": "N/A", "status": "N/A"},
            {**SWITCH, "proc/812/comm": "python\n"},
            {},
            [("error", "restart process")],
        ),
        (
            {"state": "In Progress", "status": "N/A"},
            {**SWITCH, **RUNNING},
            {},
            [("error", "restart process"), ("ok", "none")],
        ),
        ({"status": "Unknown Error"}, {}, {}, [("error", "reset device")]),
        # A container does not see the processes of its host, but the state of the fabric.
        ({}, SWITCH, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, []),
    ],
)
def test_the_fabric_manager_must_run_where_there_is_an_nvswitch(
    tmp_path: Path,
    gpu: Mapping[str, str],
    files: Mapping[str, str],
    variables: Mapping[str, str],
    wanted: list[tuple[str, str]],
) -> None:
    found = list(nvlink.check_fabric(with_query(tmp_path, write_query(gpu, gpu), files, **variables)))
    assert [(each.severity, each.action) for each in found] == wanted
    assert all("GPU 0, 1: fabric state" in each.evidence for each in found if "state" in each.evidence)


LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_3
"""


def write_topology(first: tuple[str, str], second: tuple[str, str], numa: tuple[str, str] = ("0", "1")) -> str:
    """Write what `nvidia-smi topo -m` prints of two GPUs and two cards, with its underlined head."""
    head = "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    rows = (
        f"GPU0\t X \tNV18\t{first[0]}\t{first[1]}\t0-55,112-167\t{numa[0]}\t\tN/A\n"
        f"GPU1\tNV18\t X \t{second[0]}\t{second[1]}\t56-111,168-223\t{numa[1]}\t\tN/A\n"
        f"NIC0\t{first[0]}\t{second[0]}\t X \tSYS\t\t\t\t\n"
        f"NIC1\t{first[1]}\t{second[1]}\tSYS\t X \t\t\t\t\n"
    )
    return head + rows + LEGEND


def examine_topology(root: Path, text: str, *, numa_of_second_card: str = "1") -> list[Finding]:
    files = {
        "sys/devices/system/node/node0/cpulist": "0-55,112-167",
        "sys/devices/system/node/node1/cpulist": "56-111,168-223",
        "sys/class/infiniband/mlx5_0/device/numa_node": "0\n",
        "sys/class/infiniband/mlx5_3/device/numa_node": f"{numa_of_second_card}\n",
    }
    host = build(root, {**TWO_GPUS, **files}, PATH=record_tools(root, {"nvidia-smi topo -m": text}))
    return list(gpu_topology.check_gpu_topology(host))


def test_each_gpu_has_its_network_card_near_it(tmp_path: Path) -> None:
    (found,) = examine_topology(tmp_path, write_topology(("PXB", "SYS"), ("SYS", "PXB")))
    assert (found.severity, found.evidence) == (
        "ok",
        "nearest network cards: GPU0 - mlx5_0 (PXB), GPU1 - mlx5_3 (PXB)",
    )
    far, pairs = examine_topology(tmp_path, write_topology(("PIX", "NODE"), ("SYS", "SYS")))
    assert (far.severity, far.action, pairs.severity) == ("warning", "isolate node", "note")
    assert far.evidence == "GPU1 reaches mlx5_0, as any network card, over the other socket; GPU0 is near one"
    # If no GPU is near a card, it is how the machine was built.
    for first, second in ((("NODE", "SYS"), ("SYS", "NODE")), (("SYS", "SYS"), ("SYS", "SYS"))):
        (found,) = examine_topology(tmp_path, write_topology(first, second))
        assert found.severity == "ok"
    # A GPU that is near is no network card.
    near = write_topology(("PXB", "SYS"), ("SYS", "PXB")).replace("NV18", "PIX")
    assert [list(place.cards.values()) for place in gpu_topology.parse_topology(near)] == [
        ["PXB", "SYS"],
        ["SYS", "PXB"],
    ]


def test_a_gpu_and_its_card_are_of_one_numa_node(tmp_path: Path) -> None:
    text = write_topology(("PXB", "SYS"), ("SYS", "PXB"))
    strange, _ = examine_topology(tmp_path, text, numa_of_second_card="0")
    assert (strange.severity, strange.action) == ("warning", "fix setting")
    assert strange.evidence == "GPU1 is of NUMA node 1, its nearest network card, mlx5_3, of 0"
    assert [found.severity for found in examine_topology(tmp_path, text, numa_of_second_card="-1")] == ["ok"]
    unknown, _ = examine_topology(tmp_path, write_topology(("PXB", "SYS"), ("SYS", "PXB"), ("N/A", "N/A")))
    assert (unknown.severity, unknown.evidence) == ("note", "the NUMA node of GPU0, GPU1 is unknown")


def test_older_drivers_name_the_cards_in_the_head(tmp_path: Path) -> None:
    text = "\tGPU0\tmlx5_0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-47\t0\nmlx5_0\tPHB\t X \t\t\n"
    (place,) = gpu_topology.parse_topology(text)
    assert (place.name, place.numa_nodes, place.cards) == ("GPU0", {0}, {"mlx5_0": "PHB"})
    alone = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-31\t0\t\tN/A\n"
    assert examine_topology(tmp_path, alone) == []


def write_port(kind: int, control: int) -> bytes:
    """Build the configuration space of a PCIe bridge: its kind of port, and its access control register."""
    space = bytearray(4096)
    space[0x34] = 0x40
    space[0x40:0x44] = bytes([0x01, 0x60, 0, 0])  # power management, then
    space[0x60:0x64] = bytes([0x10, 0x00, kind << 4 | 2, 0])  # PCI Express
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")  # error reporting, then
    space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")  # access control
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (write_port(6, 0b11101), True),  # as Linux sets it with an IOMMU
        (write_port(6, 0b00001), False),  # the source is checked, and nothing redirected
        (write_port(4, 0b11101), False),  # a port of the CPU
        (write_port(6, 0b11101)[:64], False),  # what others than root may read
        (b"", False),
        (bytes(4096), False),
        (b"\xff" * 4096, False),  # a device that fell off the bus
    ],
)
def test_a_switch_that_sends_all_to_the_cpu_is_found(tmp_path: Path, config: bytes, wanted: bool) -> None:
    host = build(tmp_path, {**TWO_GPUS, "sys/bus/pci/devices/0000:17:00.0/class": "0x060400\n"})
    (tmp_path / "sys/bus/pci/devices/0000:17:00.0/config").write_bytes(config)
    found = [("PCIe ACS", "warning", "fix setting")] if wanted else []
    assert seen(pcie.check_peer_access(host)) == found


def test_an_iommu_that_translates_is_a_note(tmp_path: Path) -> None:
    place = "sys/bus/pci/devices/0000:19:00.0"
    files = {f"{place}/vendor": "0x10de\n", f"{place}/class": "0x030200\n", f"{place}/numa_node": "0\n"}
    for kind, wanted in (("DMA-FQ", [("IOMMU", "note", "reboot")]), ("identity", [])):
        host = build(tmp_path, {**TWO_GPUS, **files, f"{place}/iommu_group/type": f"{kind}\n"})
        assert seen(pcie.check_peer_access(host)) == wanted


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build  (dvs-builder@U16)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        ({"sys/module/nvidia_peermem/refcnt": "0"}, "ok"),
        ({"proc/driver/nvidia/version": OPEN, "proc/sys/kernel/osrelease": "6.8.0-48-generic\n"}, "ok"),
        ({"proc/driver/nvidia/version": OPEN, "proc/sys/kernel/osrelease": "5.4.0-190-generic\n"}, "warning"),
        ({"proc/driver/nvidia/version": CLOSED, "proc/sys/kernel/osrelease": "6.8.0-48-generic\n"}, "warning"),
        ({}, "warning"),
    ],
)
def test_infiniband_reads_the_memory_of_gpus(tmp_path: Path, files: Mapping[str, str], severity: str) -> None:
    card = {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE"}
    host = build(tmp_path / "whole", {**TWO_GPUS, **card, **files})
    assert [found.severity for found in pcie.check_gpudirect(host)] == [severity]
    # Without a card, or without a GPU, nothing is amiss.
    assert list(pcie.check_gpudirect(build(tmp_path / "no-card", {**TWO_GPUS, **files}))) == []
    assert list(pcie.check_gpudirect(build(tmp_path / "no-gpu", {**card, **files}))) == []


def test_a_variable_turns_dmabuf_off(tmp_path: Path) -> None:
    files = {
        **TWO_GPUS,
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "proc/driver/nvidia/version": OPEN,
        "proc/sys/kernel/osrelease": "6.8.0",
    }
    host = build(tmp_path, files, NCCL_DMABUF_ENABLE="0")
    assert seen(pcie.check_gpudirect(host)) == [("GPUDirect RDMA", "warning", "fix setting")]


def test_a_machine_without_gpus_is_asked_nothing(tmp_path: Path) -> None:
    host = build(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE"}, PATH=str(tmp_path))
    checks = (
        gpus.check_vbios,
        nvlink.check_nvlink,
        nvlink.check_fabric,
        gpu_topology.check_gpu_topology,
        pcie.check_peer_access,
        pcie.check_gpudirect,
    )
    assert [found for check in checks for found in check(host)] == []
    assert read_firmware(host) == {}
