"""The memory that a process may still take, by the limits of its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.hardware import memory

MIB = 2**20


def write_group(folder: Path, names: tuple[str, str, str], limit: object, used: int, idle_files: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - idle_files}\n{names[2]} {idle_files}\n")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "GROUPS_FILE", tmp_path / "own")
    return tmp_path


def test_files_that_the_kernel_can_drop_count_as_free(groups: Path) -> None:
    (groups / "own").write_text("0::/\n")
    write_group(groups, memory.SECOND_VERSION, 100 * MIB, 99 * MIB, 60 * MIB)
    assert memory.free_bytes() == 61 * MIB


def test_the_least_of_all_groups_around_a_process_counts(groups: Path) -> None:
    (groups / "own").write_text("0::/job/step/task\n")
    write_group(groups / "job" / "step" / "task", memory.SECOND_VERSION, "max", 10 * MIB, 0)
    write_group(groups / "job" / "step", memory.SECOND_VERSION, 64 * MIB, 10 * MIB, 0)
    write_group(groups / "job", memory.SECOND_VERSION, 80 * MIB, 70 * MIB, 20 * MIB)
    assert memory.free_bytes() == 30 * MIB
    write_group(groups / "job", memory.SECOND_VERSION, 80 * MIB, 90 * MIB, 0)
    assert memory.free_bytes() == 0


def test_the_first_version_of_control_groups_is_read_too(groups: Path) -> None:
    (groups / "own").write_text("5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n1:name=systemd:/docker/a\n")
    # In a container only the mount exists.
    write_group(groups / "memory", memory.FIRST_VERSION, 50 * MIB, 30 * MIB, 5 * MIB)
    assert memory.free_bytes() == 25 * MIB


def test_without_a_limit_what_the_machine_has_is_free(groups: Path) -> None:
    (groups / "own").write_text("0::/gone\n")
    assert memory.free_bytes() > 64 * MIB
