"""Each check on a machine with one fault, which the test makes."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from fusionray import doctor
from fusionray.doctor import machine, network, packages, settings, storages
from fusionray.doctor.finding import find_worst
from fusionray.doctor.gpu import gpus
from fusionray.doctor.host import Host, HostOptions
from fusionray.doctor.suite import CHECKS, compare_versions, describe_check, examine
from tests.doctor.broken_host import BrokenHost, build, record_tools, seen


@pytest.mark.parametrize(("files", "severity"), [(1024, "error"), (20_000, "note"), (65_536, "ok"), (-1, "ok")])
def test_open_files(tmp_path: Path, files: int, severity: str) -> None:
    host = build(tmp_path)
    host.files = files
    assert [found.severity for found in machine.check_open_files(host)] == [severity]


def test_shared_memory_and_disk(tmp_path: Path) -> None:
    host = build(tmp_path, TMPDIR="/scratch")
    for disk, shared, free in (
        ((64 * 2**20, 2**20), "error", "error"),
        ((2**30, 2**29), "warning", "warning"),
        ((100 * 2**30, 2**30), "ok", "error"),
        ((100 * 2**30, 50 * 2**30), "ok", "ok"),
    ):
        host.disk = disk
        assert [found.severity for found in machine.check_shared_memory(host)] == [shared]
        assert [found.severity for found in machine.check_disk(host)] == [free]
    deep = build(tmp_path, RAY_TMPDIR="/scratch/" + "x" * 60)
    assert seen(machine.check_disk(deep))[-1] == ("temporary folder", "error", "fix setting")


def test_swap(tmp_path: Path) -> None:
    meminfo = "MemTotal: 100 kB\nSwapTotal: 1000 kB\nSwapFree: {} kB\n"
    for free, severity in ((100, "warning"), (900, "ok")):
        host = build(tmp_path, {"proc/meminfo": meminfo.format(free)})
        assert [found.severity for found in machine.check_swap(host)] == [severity]


def test_host_names_and_interfaces(tmp_path: Path) -> None:
    host = build(tmp_path, {"sys/class/net/eth0/x": "", "sys/class/net/lo/x": ""})
    for address, severity in (("10.0.0.7", "ok"), ("127.0.1.1", "note"), (None, "warning")):
        host.address = address
        assert [found.severity for found in network.check_host_name(host)] == [severity]
    host.environment = {"GLOO_SOCKET_IFNAME": "eth0"}
    host.address = "127.0.1.1"
    assert find_worst(list(network.check_host_name(host))) == "ok"
    for chosen, severities in (
        ({"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth"}, ["ok", "ok"]),
        ({"NCCL_SOCKET_IFNAME": "^lo"}, ["ok"]),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, ["error"]),
    ):
        host.environment = chosen
        assert [found.severity for found in network.check_interfaces(host)] == severities


@pytest.mark.parametrize(("locked", "severity"), [(64 * 2**10, "error"), (4 * 2**30, "ok"), (-1, "ok")])
def test_locked_memory(tmp_path: Path, locked: int, severity: str) -> None:
    host = build(tmp_path)
    host.locked = locked
    assert list(network.check_locked_memory(host)) == []  # no InfiniBand, nothing to lock
    host = build(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE"})
    host.locked = locked
    assert [found.severity for found in network.check_locked_memory(host)] == [severity]


def test_infiniband(tmp_path: Path) -> None:
    def port(name: str, state: str, errors: str) -> dict[str, str]:
        place = f"sys/class/infiniband/{name}/ports/1"
        return {f"{place}/state": state, f"{place}/rate": "400 Gb/sec", f"{place}/counters/symbol_error": errors}

    files = port("mlx5_0", "4: ACTIVE", "0") | port("mlx5_1", "1: DOWN", "0") | port("mlx5_2", "4: ACTIVE", "17")
    found = list(network.check_infiniband(build(tmp_path, files)))
    assert [each.severity for each in found] == ["ok", "error", "warning"]
    assert "mlx5_1 port 1: 1: DOWN" in found[1].evidence
    assert "symbol_error 17" in found[2].evidence


def test_variables(tmp_path: Path) -> None:
    for check, variables, wanted in (
        (network.check_proxies, {"http_proxy": "http://p:1"}, ["proxy"]),
        (network.check_proxies, {"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, []),
        (settings.check_bytecode, {"PYTHONDONTWRITEBYTECODE": "1"}, ["bytecode"]),
        (settings.check_bytecode, {}, []),
        (settings.check_debugging, {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "WARN"}, ["debugging"]),
        (settings.check_authentication, {"RAY_ADDRESS": "10.0.0.1:6379"}, ["authentication"]),
        (settings.check_authentication, {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_AUTH_MODE": "token"}, []),
        (settings.check_flight_recorder, {}, []),
    ):
        assert [found.name for found in check(build(tmp_path, **variables))] == wanted
    two = build(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""})
    assert [found.severity for found in settings.check_flight_recorder(two)] == ["note"]


# A row of two GPUs as nvidia-smi prints them: a sound one, and one with every fault.
SOUND = "0, NVIDIA H100 80GB HBM3, Enabled, 0, No, No, Not Active, 16, 16, 41"
BROKEN = "1, NVIDIA H100 80GB HBM3, Disabled, 3, Yes, Yes, Active, 8, 16, 91"
LOG = """\
[  100.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.
[  100.2] NVRM: Xid (PCI:0000:5e:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) ECC error
[  100.3] NVRM: Xid (PCI:0000:5e:00): 31, pid=77, name=python, MMU Fault
"""


def with_tools(root: Path, *rows: str) -> BrokenHost:
    """Build a machine with two GPUs, whose nvidia-smi and dmesg print what was recorded."""
    tools = record_tools(root, {"nvidia-smi --query-gpu*": "\n".join([*rows, ""]), "dmesg": LOG})
    return build(root, {"dev/nvidia0": "", "dev/nvidia1": ""}, PATH=tools)


def test_gpus_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    assert find_worst(list(gpus.check_gpus(with_tools(tmp_path, SOUND, SOUND)))) == "ok"
    found = seen(gpus.check_gpus(with_tools(tmp_path, SOUND, BROKEN)))
    assert found == [
        ("GPUs", "ok", "none"),
        ("GPU memory", "error", "reset device"),
        ("GPU memory", "error", "isolate node"),
        ("GPU memory", "warning", "reset device"),
        ("GPU clocks", "error", "isolate node"),
        ("PCIe", "warning", "isolate node"),
        ("GPU heat", "warning", "none"),
        ("persistence", "note", "fix setting"),
    ]
    fewer, *_ = gpus.check_gpus(with_tools(tmp_path, SOUND))
    assert (fewer.severity, fewer.evidence, fewer.action) == ("error", "1 of 2 GPUs answer", "reboot")


def test_a_driver_that_does_not_answer_and_gpus_that_are_missing(tmp_path: Path) -> None:
    silent = build(tmp_path, {"dev/nvidia0": ""}, PATH=str(tmp_path / "nothing"))
    (found,) = gpus.check_gpus(silent)
    assert (found.severity, found.action) == ("error", "reboot")
    none = BrokenHost(HostOptions(gpus=8), root=tmp_path / "empty", environment={"PATH": ""})
    (found,) = gpus.check_gpus(none)
    assert (found.severity, found.action) == ("error", "fix setting")


def test_an_older_driver_that_knows_other_fields_is_no_broken_one(tmp_path: Path) -> None:
    host = with_tools(tmp_path, SOUND)
    (tmp_path / "tools" / "nvidia-smi").write_text('#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: NVIDIA A100"\n')
    assert seen(gpus.check_gpus(host)) == [("GPUs", "note", "fix setting")]


def test_xids_have_their_class_of_action(tmp_path: Path) -> None:
    assert seen(gpus.check_kernel_log(with_tools(tmp_path))) == [
        ("XID", "error", "reboot"),
        ("XID", "error", "reset device"),
        ("XID", "note", "restart process"),
    ]


def test_scripts_and_storages(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.DataParallel(model)\ntorch.distributed.init_process_group(backend='gloo')\n"
    )
    options = HostOptions(scripts=(str(script), str(tmp_path / "gone.py")), storages=(str(tmp_path), "/proc/nowhere"))
    host = BrokenHost(options, root=tmp_path, environment={})
    found = list(settings.check_scripts(host))
    assert [each.severity for each in found] == ["warning", "error"]
    assert "train.py:2: DataParallel" in found[0].evidence
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    host = BrokenHost(options, root=tmp_path, environment={})
    assert [each.severity for each in settings.check_scripts(host)] == ["warning", "warning", "error"]
    sound, broken = storages.check_storages(host)
    assert (sound.severity, broken.severity) == ("ok", "error")
    assert re.search(r"writes \d+ MB/s, reads \d+ MB/s, \d+ small files/s", sound.evidence)
    assert list(tmp_path.glob("fusionray-doctor-*")) == []


def test_versions_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [found.severity for found in compare_versions({"ray": "2.60.0"}, {"ray": "2.60.0"}, "there")] == ["ok"]
    (found,) = compare_versions({"ray": "2.60.0"}, {"ray": "2.59.0", "torch": "2.13"}, "on b")
    assert found.evidence == "ray 2.60.0 here, 2.59.0 on b; torch missing here, 2.13 on b"
    monkeypatch.setattr(packages.metadata, "version", lambda name: "1.0")
    assert [found.severity for found in packages.check_onnxruntime(Host())] == ["error"]


def test_a_check_that_breaks_is_a_finding_and_the_others_are_made(tmp_path: Path) -> None:
    told: list[str] = []
    host = build(tmp_path, {"proc/meminfo": "SwapTotal: many kB\n"})
    found = examine(host, told.append)
    (broken,) = [each for each in found if "the check failed" in each.evidence]
    assert (broken.name, broken.severity) == ("swap", "warning")
    assert told == [describe_check(check) for check in CHECKS]


def test_a_package_that_slows_every_import_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(packages.check_slow_imports(Host())) == []
    monkeypatch.setattr(packages.metadata, "version", lambda name: "1.1.0")
    (finding,) = packages.check_slow_imports(Host())
    assert (finding.severity, finding.name) == ("note", "imports")
    assert "rfc3987-syntax 1.1.0" in finding.evidence


def test_every_check_that_is_written_is_made() -> None:
    written = {
        getattr(module, name)
        for found in pkgutil.walk_packages(doctor.__path__, "fusionray.doctor.")
        for module in [importlib.import_module(found.name)]
        for name in vars(module)
        if name.startswith("check_")
    }
    assert written == set(CHECKS)


def test_a_machine_with_gpus_needs_no_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = build(tmp_path)
    monkeypatch.setattr(type(host), "num_gpus", 1)
    monkeypatch.setattr(packages, "tensorrt_version", lambda: None)
    found = {finding.evidence: finding.severity for finding in packages.check_providers(host)}
    assert found["TensorRT is not there; models run on CUDA alone"] == "note"
    # This one is not there either, but a machine with GPUs needs it.
    assert "error" in {severity for text, severity in found.items() if "CUDAExecutionProvider" in text}
