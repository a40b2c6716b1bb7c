"""A line of the audit log that was changed, removed, put in or cut off shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fusionray.cli import main
from fusionray.errors import ChainBroken, InputMissing
from fusionray.safety.audit import AuditConfig, AuditEntry, AuditLog
from fusionray.safety.audit_chain import NO_LINE, check_chain, hash_line, read_last_line

NUM_LINES = 12


def write_log(path: Path, count: int = NUM_LINES, **settings: int) -> AuditLog:
    log = AuditLog(AuditConfig(path=str(path), **settings))
    for number in range(count):
        log.write(AuditEntry(f"r-{number}", 200, "", 1.0, "tiny", "0" * 64))
    return log


def change(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"r-5"', b'"r-X"') for line in lines]


def remove(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if b'"r-5"' not in line]


def put_in(lines: list[bytes]) -> list[bytes]:
    return [*lines[:6], lines[5], *lines[6:]]


def swap(lines: list[bytes]) -> list[bytes]:
    return [*lines[:5], lines[6], lines[5], *lines[7:]]


def damage(lines: list[bytes]) -> list[bytes]:
    return [*lines[:6], b"{}", *lines[6:]]


@pytest.mark.parametrize(
    ("edit", "line"), [(change, 7), (remove, 6), (put_in, 7), (swap, 6), (damage, 7)], ids=lambda value: str(value)[:20]
)
def test_an_edited_log_names_the_line_that_does_not_follow(
    tmp_path: Path, edit: Callable[[list[bytes]], list[bytes]], line: int
) -> None:
    path = tmp_path / "audit.jsonl"
    write_log(path)
    assert check_chain(path).num_lines == NUM_LINES
    path.write_bytes(b"\n".join(edit(path.read_bytes().splitlines())) + b"\n")
    with pytest.raises(ChainBroken, match=rf"audit\.jsonl, line {line}: it"):
        check_chain(path)


def test_lines_cut_off_at_the_end_show_by_an_earlier_hash(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = write_log(path)
    noted = check_chain(path).last_hash
    log.write(AuditEntry("later", 200, "", 1.0, "tiny", "0" * 64))
    assert check_chain(path, noted).num_lines == NUM_LINES + 1
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[: NUM_LINES - 1]) + b"\n")
    assert check_chain(path).num_lines == NUM_LINES - 1
    with pytest.raises(ChainBroken, match=f"the line with the hash {noted} is gone"):
        check_chain(path, noted)


def test_the_chain_goes_on_through_rotations_and_restarts(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(3):
        write_log(path, max_bytes=1024, keep=100)
    chain = check_chain(path)
    assert (chain.num_lines, chain.is_whole) == (3 * NUM_LINES, True)
    assert len(chain.files) > 5
    # The files are numbered from the newest on, beyond nine too.
    assert chain.files[0].name == f"audit.jsonl.{len(chain.files) - 1}"
    chain.files[0].unlink()
    assert not check_chain(path).is_whole
    chain.files[2].unlink()
    with pytest.raises(ChainBroken, match="line 1: it does not follow"):
        check_chain(path)


def test_a_line_that_was_cut_by_a_crash_shows_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = write_log(path)
    with path.open("ab") as file:
        file.write(b'{"when": "2026')
    log.write(AuditEntry("later", 200, "", 1.0, "tiny", "0" * 64))
    lines = path.read_bytes().splitlines()
    assert b'"later"' in lines[-1]
    with pytest.raises(ChainBroken, match=f"line {NUM_LINES + 1}: it is not a line of an audit log"):
        check_chain(path)


@pytest.mark.parametrize("length", [10, 16_383, 16_384, 16_385, 50_000])
def test_the_last_line_is_read_whatever_its_length(tmp_path: Path, length: int) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"first\n" + b"x" * length + b"\n")
    assert read_last_line(path) == b"x" * length
    path.write_bytes(b"x" * length + b"\n")
    assert read_last_line(path) == b"x" * length
    path.write_bytes(b"")
    assert read_last_line(path) is None


def test_the_verb_prints_the_last_hash_or_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    assert main(["audit", str(path)]) == 1
    assert "there is no audit log" in capsys.readouterr().err
    write_log(path)
    assert main(["audit", str(path)]) == 0
    last = hash_line(path.read_bytes().splitlines()[-1])
    assert f"{NUM_LINES} lines in 1 file(s)" in (said := capsys.readouterr().out)
    assert said.endswith(f"{last}\n")
    assert main(["audit", str(path), "--last", NO_LINE]) == 1
    assert "is gone" in capsys.readouterr().err


def test_an_empty_log_holds(tmp_path: Path) -> None:
    write_log(tmp_path / "audit.jsonl", 0)
    chain = check_chain(tmp_path / "audit.jsonl")
    assert (chain.num_lines, chain.last_hash, chain.is_whole) == (0, NO_LINE, True)
    with pytest.raises(InputMissing, match="no audit log"):
        check_chain(tmp_path / "none" / "audit.jsonl")
