from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusionray.hardware.profiles import (
    HardwareProfile,
    describe_profile,
    detect_profile,
    load_profiles,
    match_amd,
    match_cpu,
    match_nvidia,
    tabulate,
)

CPU = torch.device("cpu")
DOCUMENT = Path(__file__).parents[2] / "docs" / "hardware.md"


@pytest.mark.parametrize(
    ("capability", "name", "precision", "tf32", "compiled"),
    [
        ((6, 1), "pascal", "fp32", False, False),
        ((7, 0), "volta", "fp16", False, False),
        ((7, 5), "turing", "fp16", False, False),
        ((8, 0), "ampere-datacenter", "bf16", True, True),
        ((8, 6), "ampere", "bf16", True, True),
        ((8, 7), "ampere", "bf16", True, True),
        ((8, 9), "ada", "bf16", True, True),
        ((9, 0), "hopper", "bf16", True, True),
        ((10, 0), "blackwell-datacenter", "bf16", True, True),
        ((10, 3), "blackwell-datacenter", "bf16", True, True),
        ((12, 0), "blackwell", "bf16", True, True),
        ((12, 1), "blackwell", "bf16", True, True),
    ],
)
def test_every_nvidia_generation_has_its_profile(
    capability: tuple[int, int], name: str, precision: str, tf32: bool, compiled: bool
) -> None:
    found = match_nvidia(*capability)
    assert (found.name, found.precision, found.tf32, found.compile) == (name, precision, tf32, compiled)
    assert found.note == ""
    # Tensor cores read NHWC.
    assert found.channels_last == (capability >= (7, 0))


@pytest.mark.parametrize(
    ("architecture", "name", "precision", "compiled"),
    [
        ("gfx906:sramecc+:xnack-", "gcn", "fp32", False),
        ("gfx908:sramecc+:xnack-", "cdna1", "bf16", False),
        ("gfx90a:sramecc+:xnack-", "cdna2", "bf16", True),
        ("gfx942", "cdna3", "bf16", True),
        ("gfx950", "cdna4", "bf16", True),
        ("gfx1030", "rdna1-2", "fp32", False),
        ("gfx1100", "rdna3", "bf16", False),
        ("gfx1151", "rdna3", "bf16", False),
        ("gfx1201", "rdna4", "bf16", False),
    ],
)
def test_every_amd_generation_has_its_profile(architecture: str, name: str, precision: str, compiled: bool) -> None:
    found = match_amd(architecture)
    assert (found.name, found.precision, found.compile, found.note) == (name, precision, compiled, "")
    assert not found.channels_last


@pytest.mark.parametrize(
    ("machine", "capabilities", "name", "precision"),
    [
        ("x86_64", ["avx512_bf16", "amx_bf16", "amx_tile", "avx2"], "cpu-amx", "bf16"),
        ("x86_64", ["avx512_bf16", "avx2"], "cpu-avx512-bf16", "bf16"),
        ("x86_64", ["avx512_f", "avx2"], "cpu-x86", "fp32"),
        ("AMD64", ["avx2"], "cpu-x86", "fp32"),
        ("aarch64", ["neon", "bf16"], "cpu-arm-bf16", "bf16"),
        ("arm64", ["neon"], "cpu-arm", "fp32"),
        ("riscv64", [], "cpu-other", "fp32"),
    ],
)
def test_a_cpu_computes_in_bf16_only_where_it_multiplies_it(
    machine: str, capabilities: list[str], name: str, precision: str
) -> None:
    found = match_cpu(machine, capabilities)
    assert (found.name, found.precision, found.tf32) == (name, precision, False)
    # Measured: compiling costs minutes and gains nothing.
    assert not found.compile


@pytest.mark.parametrize(
    ("found", "name", "says"),
    [
        (match_nvidia(13, 0), "blackwell", "capability 13.0 has no profile"),
        (match_nvidia(9, 1), "hopper", "capability 9.1"),
        (match_nvidia(3, 5), "pascal", "capability 3.5"),
        (match_amd("gfx955"), "cdna4", "gfx955 has no profile"),
        (match_amd("gfx1310:xnack-"), "rdna4", "gfx1310 has no profile"),
    ],
)
def test_an_unknown_device_gets_the_nearest_profile_and_a_note(found: HardwareProfile, name: str, says: str) -> None:
    assert found.name == name
    assert says in found.note
    assert f"using {name}" in describe_profile(found, CPU)


def test_this_cpu_has_a_profile_and_a_one_line_description() -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    found = detect_profile(CPU)
    assert found.name.startswith("cpu")
    line = describe_profile(found, CPU)
    assert "\n" not in line
    assert f"profile {found.name}, {found.precision}" in line
    assert "GiB" in line
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (threads, precision)


def test_a_precision_that_a_cpu_emulates_is_told() -> None:
    # Seen: style-small asked for bf16, and took 4 s an image instead of 0.7.
    plain, able = match_cpu("x86_64", ["avx2"]), match_cpu("x86_64", ["avx2", "avx512_bf16"])
    wanted = {"precision": "bf16"}
    assert "emulates bf16, many times slower" in describe_profile(plain.model_copy(update=wanted), CPU)
    for fine in (plain, able, able.model_copy(update=wanted)):
        assert "emulates" not in describe_profile(fine, CPU)


def test_overrides_show_in_the_line() -> None:
    chosen = match_nvidia(9, 0).model_copy(update={"precision": "fp32", "compile": False, "channels_last": False})
    assert describe_profile(chosen, CPU).endswith("profile hopper, fp32, contiguous, eager")
    assert describe_profile(match_nvidia(9, 0), CPU).endswith("profile hopper, bf16 over tf32, channels_last, compiled")


def test_every_row_names_its_source_and_its_own_name() -> None:
    rows = [row for family in load_profiles().values() for row in family]
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.source for row in rows)


def test_the_document_shows_the_table_of_the_code() -> None:
    assert tabulate() in DOCUMENT.read_text("utf-8")
