"""All checks of a machine, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fusionray.doctor import container, machine, network, packages, settings, storages
from fusionray.doctor.finding import Finding
from fusionray.doctor.gpu import gpu_topology, gpus, nvlink, pcie
from fusionray.doctor.host import Host

Check = Callable[[Host], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    packages.check_requirements,
    packages.check_slow_imports,
    packages.check_onnxruntime,
    packages.check_torch,
    packages.check_providers,
    gpus.check_gpus,
    gpus.check_vbios,
    gpus.check_kernel_log,
    nvlink.check_nvlink,
    nvlink.check_fabric,
    gpu_topology.check_gpu_topology,
    pcie.check_peer_access,
    pcie.check_gpudirect,
    container.check_container,
    container.check_memory_limit,
    container.check_cpu_limit,
    machine.check_open_files,
    machine.check_shared_memory,
    machine.check_disk,
    machine.check_swap,
    network.check_host_name,
    network.check_interfaces,
    network.check_proxies,
    network.check_infiniband,
    network.check_locked_memory,
    settings.check_bytecode,
    settings.check_debugging,
    settings.check_authentication,
    settings.check_master_address,
    settings.check_flight_recorder,
    settings.check_scripts,
    storages.check_storages,
)


def examine(host: Host, show: Callable[[str], object] = lambda _: None) -> list[Finding]:
    """Run all checks; `show` is told what each does. One that breaks is a finding itself."""
    findings: list[Finding] = []
    for check in CHECKS:
        show(describe_check(check))
        try:
            findings += check(host)
        except Exception as error:  # noqa: BLE001 - the others shall be made
            evidence = f"the check failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            findings.append(Finding(name_check(check), "warning", evidence, "report it as a bug", "none"))
    return findings


def name_check(check: Check) -> str:
    """Return the name of a check."""
    return check.__name__.removeprefix("check_").replace("_", " ")


def describe_check(check: Check) -> str:
    """Return what a check does, in a sentence."""
    return (check.__doc__ or name_check(check)).strip().splitlines()[0]


def compare_versions(found: Mapping[str, str], golden: Mapping[str, str], where: str) -> list[Finding]:
    """Compare versions with those of a file, or of another node, which `where` names."""
    differences = [
        f"{name} {found.get(name, 'missing')} here, {golden.get(name, 'missing')} {where}"
        for name in sorted({*found, *golden})
        if found.get(name) != golden.get(name)
    ]
    if not differences:
        return [Finding("versions", "ok", f"the same as {where}")]
    remedy = "install the same lock on all nodes: `pip install -r requirements.lock`"
    return [Finding("versions", "error", "; ".join(differences), remedy, "fix setting")]
