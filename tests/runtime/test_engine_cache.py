from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusionray.environment import CACHE_VARIABLE
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.engine_cache import ENTRY_NAME, EngineCache, make_key, open_cache
from tests.support.child_python import ROOT

PARTS = {"model": "a", "precision": "fp32"}
KEY = make_key(PARTS)
CHILD = """
import sys, time
from pathlib import Path
from fusionray.runtime.engines.engine_cache import EngineCache
folder, seconds = sys.argv[1], float(sys.argv[2])
def build(place):
    Path(folder, "log").open("a").write("begun\\n")
    place.joinpath("half").write_bytes(b"half")
    time.sleep(seconds)
    place.joinpath("engine").write_bytes(b"whole")
cache = EngineCache(Path(folder, "cache"), max_bytes=2**30, stale_seconds=3600, wait_seconds=60)
print("ready", flush=True)
sys.stdin.readline()
entry = cache.get_or_build({"model": "a", "precision": "fp32"}, build)
print("built" if entry.built else "found " + entry.files["engine"].read().decode(), flush=True)
"""


def make_cache(folder: Path, **settings: float) -> EngineCache:
    chosen = {"max_bytes": 2**30, "stale_seconds": 3600.0, "wait_seconds": 30.0, **settings}
    return EngineCache(folder, **chosen)  # type: ignore[arg-type]


def write_engine(place: Path) -> None:
    (place / "engine").write_bytes(b"engine")


def refuse_to_build(place: Path) -> None:
    raise AssertionError("nothing was to be built")


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a process that is ready to open the entry, and takes `seconds` if it has to build it."""
    path = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def test_a_built_entry_is_found_again(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    built = cache.get_or_build(PARTS, write_engine)
    assert built is not None
    assert built.built
    found = cache.get_or_build(PARTS, refuse_to_build)
    assert found is not None
    with found:
        assert not found.built
        assert found.files["engine"].read() == b"engine"
        assert Path(found.files["engine"].path).read_bytes() == b"engine"
    assert [path.name for path in tmp_path.iterdir()] == [KEY]


@pytest.mark.parametrize("changed", [{"model": "b"}, {"precision": "bf16"}, {"device": "another"}])
def test_every_part_of_a_key_counts(tmp_path: Path, changed: dict[str, str]) -> None:
    cache = make_cache(tmp_path)
    cache.get_or_build(PARTS, write_engine)
    other = cache.get_or_build({**PARTS, **changed}, write_engine)
    assert other is not None
    assert other.built
    assert len(list(tmp_path.glob(f"*/{ENTRY_NAME}"))) == 2


def test_of_concurrent_processes_one_builds_and_the_others_load(tmp_path: Path) -> None:
    children = [start(tmp_path, 1.0) for _ in range(3)]
    for child in children:
        go(child)
    said = sorted(child.communicate(timeout=120)[0].strip() for child in children)
    assert said == ["built", "found whole", "found whole"]
    assert (tmp_path / "log").read_text() == "begun\n"


def test_another_process_builds_after_a_builder_is_killed_and_no_partial_entry_is_loaded(tmp_path: Path) -> None:
    builder, *waiters = start(tmp_path, 600.0), start(tmp_path, 0.5), start(tmp_path, 0.5)
    go(builder)
    wait_for(tmp_path / "log")
    for waiter in waiters:
        go(waiter)
    time.sleep(0.3)
    assert [waiter.poll() for waiter in waiters] == [None, None]
    builder.send_signal(signal.SIGKILL)
    assert builder.communicate(timeout=60)[0] == ""
    said = sorted(waiter.communicate(timeout=120)[0].strip() for waiter in waiters)
    assert said == ["built", "found whole"]
    assert (tmp_path / "log").read_text() == "begun\nbegun\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [KEY]
    assert sorted(path.name for path in (tmp_path / "cache" / KEY).iterdir()) == ["engine", ENTRY_NAME, "half"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a bit turned": lambda folder: flip(folder / "engine"),
    "cut short": lambda folder: os.truncate(folder / "engine", 3),
    "a file gone": lambda folder: (folder / "engine").unlink(),
    "no description": lambda folder: (folder / ENTRY_NAME).unlink(),
    "half a description": lambda folder: os.truncate(folder / ENTRY_NAME, 20),
    "nothing in it": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    "of another key": lambda folder: (folder / ENTRY_NAME).write_text(
        (folder / ENTRY_NAME).read_text().replace('"model": "a"', '"model": "b"')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    cache = make_cache(tmp_path)
    cache.get_or_build(PARTS, write_engine)
    DAMAGES[damage](tmp_path / KEY)
    again = cache.get_or_build(PARTS, write_engine)
    assert again is not None
    assert again.built
    found = cache.get_or_build(PARTS, refuse_to_build)
    assert found is not None
    with found:
        assert found.files["engine"].read() == b"engine"


def test_an_open_entry_reads_the_checked_content_after_a_replacement(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    cache.get_or_build(PARTS, write_engine)
    found = cache.get_or_build(PARTS, refuse_to_build)
    assert found is not None
    with found:
        other = tmp_path / "other"
        other.write_bytes(b"malign")
        os.replace(other, tmp_path / KEY / "engine")
        assert found.files["engine"].read() == b"engine"
        assert Path(found.files["engine"].path).read_bytes() == b"engine"


def test_a_failed_build_raises_and_leaves_nothing(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)

    def fail(place: Path) -> None:
        write_engine(place)
        raise ValueError("cannot be built")

    with pytest.raises(ValueError, match="cannot be built"):
        cache.get_or_build(PARTS, fail)
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_entry_is_evicted(tmp_path: Path) -> None:
    def write_much(place: Path) -> None:
        (place / "engine").write_bytes(b"x" * 10_000)

    cache = make_cache(tmp_path, max_bytes=35_000)
    keys = {}
    for index, model in enumerate("abc"):
        keys[model] = make_key({"model": model})
        cache.get_or_build({"model": model}, write_much)
        os.utime(tmp_path / keys[model] / ENTRY_NAME, (1000 + index,) * 2)
    # Used again: no longer the oldest.
    found = cache.get_or_build({"model": "a"}, refuse_to_build)
    assert found is not None
    found.close()
    cache.get_or_build({"model": "d"}, write_much)
    assert {path.name for path in tmp_path.iterdir()} == {keys["a"], keys["c"], make_key({"model": "d"})}


def test_an_entry_over_the_size_limit_is_kept_alone(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, max_bytes=1)
    cache.get_or_build(PARTS, write_engine)
    cache.get_or_build({"model": "b"}, write_engine)
    assert [path.name for path in tmp_path.iterdir()] == [make_key({"model": "b"})]


def test_leftovers_of_dead_builders_are_removed_after_a_day(tmp_path: Path) -> None:
    for name, age in (("old", 2 * 86400), ("young", 60)):
        (tmp_path / f".{name}.part").mkdir()
        os.utime(tmp_path / f".{name}.part", (time.time() - age,) * 2)
    make_cache(tmp_path).get_or_build(PARTS, write_engine)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".young.part", KEY]


def test_after_the_longest_wait_the_cache_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.lease").mkdir()
    (tmp_path / f"{KEY}.lease" / "lease-000001").write_text(
        json.dumps({"token": "t", "host": "far", "machine": "another", "pid": 1, "started": "1"})
    )
    with pytest.warns(RuntimeWarning, match="another process has been building") as caught:
        assert make_cache(tmp_path, wait_seconds=0.2).get_or_build(PARTS, refuse_to_build) is None
    assert len(caught) == 1


@contextlib.contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Run as an ordinary user, because root can write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    # Not pytest's own folder, which only its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        cache = folder / "cache"
        cache.mkdir()
        yield cache
        cache.chmod(0o755)


def test_an_unwritable_folder_is_not_used(read_only_folder: Path) -> None:
    read_only_folder.chmod(0o555)
    with as_an_ordinary_user(), pytest.warns(RuntimeWarning, match="cannot be used as engine cache") as caught:
        assert make_cache(read_only_folder).get_or_build(PARTS, refuse_to_build) is None
    assert len(caught) == 1


def test_entries_of_a_read_only_folder_are_used(read_only_folder: Path) -> None:
    make_cache(read_only_folder).get_or_build(PARTS, write_engine)
    read_only_folder.chmod(0o555)
    with as_an_ordinary_user():
        found = make_cache(read_only_folder).get_or_build(PARTS, refuse_to_build)
    assert found is not None
    with found:
        assert found.files["engine"].read() == b"engine"


def test_only_engines_that_take_minutes_are_cached_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert open_cache(RuntimeConfig()) is None
    cache = open_cache(RuntimeConfig(), by_default=True)
    assert cache is not None
    assert cache.folder == tmp_path / "fusionray" / "engines"
    assert open_cache(RuntimeConfig(cache=None), by_default=True) is None
