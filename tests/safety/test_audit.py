from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fusionray.errors import AuditFailed
from fusionray.safety.audit import AuditConfig, AuditEntry, AuditLog, hash_bytes
from fusionray.safety.audit_chain import NO_LINE, check_chain
from tests.support.child_python import ROOT

ENTRY = AuditEntry("r-1", 200, "ok", 12.5, "tiny", "ab" * 32, "studio", "1" * 64, "2" * 64, "3" * 64, 1)
NUM_PROCESSES = 4
NUM_LINES = 250
WRITER = """
import sys
from fusionray.safety.audit import AuditEntry, AuditLog, AuditConfig
log = AuditLog(AuditConfig(path=sys.argv[1], max_bytes=int(sys.argv[3]), keep=200))
for number in range(int(sys.argv[4])):
    log.write(AuditEntry(f"{sys.argv[2]}-{number}", 200, "ok", 1.0, "tiny", "0" * 64, "x" * (number % 90)))
"""
FULL = """
import sys
from fusionray.errors import AuditFailed
from fusionray.safety.audit import AuditEntry, AuditLog, AuditConfig
from tests.support.full_disk import full_disk
log = AuditLog(AuditConfig(path=sys.argv[1], required=sys.argv[2] == "required"))
with full_disk(1000):
    for number in range(6):
        try:
            log.write(AuditEntry(str(number), 200, "ok", 1.0, "tiny", "0" * 64))
        except AuditFailed as error:
            print(error)
log.write(AuditEntry("last", 200, "ok", 1.0, "tiny", "0" * 64))
print(log.num_lost)
"""


def read_lines(*files: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join((str(ROOT / "platform"), str(ROOT)))},
    )


def test_a_line_states_who_requested_what_and_when(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "audit.jsonl"
    log = AuditLog(AuditConfig(path=str(file)))
    log.write(ENTRY)
    log.write(AuditEntry("r-2", 422, "no_face", 3.0, "tiny", "ab" * 32))
    first, second = read_lines(file)
    when = datetime.fromisoformat(str(first.pop("when")))
    assert when.utcoffset() == timedelta(0)
    assert abs((datetime.now(UTC) - when).total_seconds()) < 10
    assert first == {
        "request": "r-1",
        "status": 200,
        "reason": "ok",
        "duration_ms": 12.5,
        "model": "tiny",
        "bundle": "ab" * 32,
        "who": "studio",
        "source_sha256": "1" * 64,
        "target_sha256": "2" * 64,
        "output_sha256": "3" * 64,
        "num_faces": 1,
        "reference_sha256": None,
        "previous": NO_LINE,
    }
    assert second["who"] == "anonymous"
    assert second["output_sha256"] is None


def test_values_of_a_client_make_no_second_line_and_no_long_one(tmp_path: Path) -> None:
    log = AuditLog(AuditConfig(path=str(tmp_path / "audit.jsonl")))
    log.write(AuditEntry('a"\n{"forged": 1}\n' + "x" * 10_000, 200, "ok", 1.0, "größe\u2028", "0"))
    (line,) = (tmp_path / "audit.jsonl").read_bytes().split(b"\n")[:-1]
    assert len(line) < 800
    assert json.loads(line)["model"] == "größe\u2028"


def test_the_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.touch(0o644)
    AuditLog(AuditConfig(path=str(file))).write(ENTRY)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_processes_and_threads_write_whole_lines_through_rotations(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    children = [run(WRITER, str(file), f"p{number}", "20000", str(NUM_LINES)) for number in range(NUM_PROCESSES)]
    log = AuditLog(AuditConfig(path=str(file), max_bytes=20_000, keep=200))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: log.write(AuditEntry(f"t-{n}", 200, "ok", 1.0, "tiny", "0")), range(NUM_LINES)))
    assert [child.wait(60) for child in children] == [0] * NUM_PROCESSES
    for child in children:
        child.communicate()
    files = [place for place in tmp_path.iterdir() if place.suffix != ".lock"]
    assert len(files) > 5
    assert all(place.stat().st_size <= 20_000 for place in files)
    written = [line["request"] for line in read_lines(*files)]
    wanted = {f"p{process}-{n}" for process in range(NUM_PROCESSES) for n in range(NUM_LINES)}
    wanted |= {f"t-{n}" for n in range(NUM_LINES)}
    assert len(written) == len(wanted)
    assert set(written) == wanted
    chain = check_chain(file)
    assert (chain.num_lines, len(chain.files), chain.is_whole) == (len(wanted), len(files), True)


def test_a_limited_number_of_rotated_files_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog(AuditConfig(path=str(file), max_bytes=1024, keep=2))
    for number in range(40):
        log.write(AuditEntry(f"{number:02}", 200, "ok", 1.0, "tiny", "0" * 64))
    names = sorted(place.name for place in tmp_path.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.lock"]
    kept = [line["request"] for line in read_lines(tmp_path / "audit.jsonl.2", tmp_path / "audit.jsonl.1", file)]
    assert kept == [f"{number:02}" for number in range(40 - len(kept), 40)]


@pytest.mark.parametrize("required", [True, False])
def test_a_full_disk_is_reported_or_counted_and_leaves_no_partial_line(tmp_path: Path, required: bool) -> None:
    file = tmp_path / "audit.jsonl"
    child = run(FULL, str(file), "required" if required else "counted")
    *errors, num_lost = child.communicate(timeout=60)[0].splitlines()
    assert child.returncode == 0
    lines = read_lines(file)
    assert lines[-1]["request"] == "last"
    assert int(num_lost) == 7 - len(lines) > 0
    assert len(errors) == (int(num_lost) if required else 0)
    assert all("audit line cannot be written" in error for error in errors)


def test_an_unwritable_file_fails_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for required in (True, False):
        with pytest.raises(AuditFailed, match="cannot be written"):
            AuditLog(AuditConfig(path=str(tmp_path / "file" / "audit.jsonl"), required=required))
    with pytest.raises(ValueError, match=r"audit\.path"):
        AuditLog(AuditConfig())


def test_bytes_are_named_by_their_sha256() -> None:
    assert hash_bytes(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
