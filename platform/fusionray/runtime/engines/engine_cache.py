"""Cache of compiled engines in a folder that all replicas share: one process builds, the others wait and load.

    <key>/entry.json   the parts of the key, and size and sha256 of each file
    <key>/...          the compiled engine
    <key>.lease/       the process that builds the entry now (storage/lease.py)

Entries are written atomically and never change. Each file is hashed and loaded through the same open file. The hashes
detect damage, not attacks: anybody who can write to the folder decides what this process runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from fusionray.bundle.bundle import hash_file, replace_folder, store_file
from fusionray.environment import find_cache_folder
from fusionray.runtime.config import AUTO, RuntimeConfig
from fusionray.storage.lease import Lease

ENTRY_NAME = "entry.json"
FORMAT = 1
POLL_SECONDS = 0.05
GIB = 2**30
LEFTOVER_SECONDS = 24 * 3600


class CacheEntryDamaged(Exception):
    """An entry is not as it was written; the cache builds it again."""


@dataclass(frozen=True)
class CachedFile:
    """An open file with checked content; a later file of the same name does not change what it reads."""

    file: BinaryIO

    @property
    def path(self) -> str:
        """Return a path of the open file, which libraries that take no file object can open."""
        return f"/proc/self/fd/{self.file.fileno()}"

    def read(self) -> bytes:
        """Read the whole file."""
        self.file.seek(0)
        return self.file.read()


class CacheEntry:
    """The checked, open files of an entry. `built`: this process built it; `seconds`: how long the build took."""

    def __init__(self, files: Mapping[str, CachedFile], seconds: float, *, built: bool) -> None:
        self.files = files
        self.seconds = seconds
        self.built = built

    def copy_to(self, folder: Path) -> None:
        """Copy the checked content of every file into a folder."""
        for name, file in self.files.items():
            (folder / name).write_bytes(file.read())

    def close(self) -> None:
        """Close the files."""
        for checked in self.files.values():
            checked.file.close()

    def __enter__(self) -> CacheEntry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class EngineCache:
    """A folder of compiled engines, used by any number of processes."""

    def __init__(self, folder: str | Path, *, max_bytes: int, stale_seconds: float, wait_seconds: float) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.max_bytes = max_bytes
        self.stale_seconds = stale_seconds
        self.wait_seconds = wait_seconds

    def get_or_build(self, parts: Mapping[str, Any], build: Callable[[Path], None]) -> CacheEntry | None:
        """Open the entry of a key; wait if another process builds it; else call `build` with a folder to write to.

        Returns None, with one warning, if the folder cannot be used, or if another process builds for too long.
        """
        key = make_key(parts)
        found = self.find(key)
        if found is not None:
            return found
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lease = self.make_lease(key)
            found = self.wait_for_entry(key, lease)
            if found is None and lease.number:
                with lease.held():
                    # The previous holder of the lease may just have finished.
                    found = self.find(key) or self.build_entry(key, parts, build)
        except OSError as error:
            warn(f"{self.folder}: cannot be used as engine cache ({error.strerror or error})")
            return None
        if found is None:
            warn(f"{self.folder}: another process has been building {key} for {self.wait_seconds:g} s")
        return found

    def make_lease(self, key: str) -> Lease:
        """Make the lease that a process takes to build an entry. Other users of the folder may read its holder."""
        return Lease(
            self.folder / f"{key}.lease",
            timeout_seconds=self.stale_seconds,
            # A build may block all threads of a process, heartbeat included, for minutes; a second build takes as long.
            trust_living=True,
            owns_folder=True,
            file_mode=0o644,
        )

    def wait_for_entry(self, key: str, lease: Lease) -> CacheEntry | None:
        """Wait until the entry exists or this process has the lease; give up after `wait_seconds`."""
        deadline = time.monotonic() + self.wait_seconds
        rejected = self.entry_inode(key)
        while not lease.try_take():
            if self.entry_inode(key) != rejected and (found := self.find(key)) is not None:
                return found
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)
        return None

    def entry_inode(self, key: str) -> int | None:
        """Return the inode of the entry's description, which a rebuilt entry changes; None if there is no entry."""
        try:
            return (self.folder / key / ENTRY_NAME).stat().st_ino
        except OSError:
            return None

    def find(self, key: str) -> CacheEntry | None:
        """Open the entry of a key; None if it is missing or damaged."""
        folder = self.folder / key
        try:
            found = open_entry(folder)
        except (OSError, CacheEntryDamaged):
            return None
        # Eviction goes by this time. A read-only folder refuses the update, and nothing is evicted from it.
        with contextlib.suppress(OSError):
            os.utime(folder / ENTRY_NAME)
        return found

    def build_entry(self, key: str, parts: Mapping[str, Any], build: Callable[[Path], None]) -> CacheEntry | None:
        """Build into a temporary folder and rename it. Only the holder of the key's lease may call this."""
        for leftover in self.folder.glob(f".{key}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staging = self.folder / f".{key}.{uuid.uuid4().hex}.part"
        staging.mkdir()
        try:
            begun = time.perf_counter()
            build(staging)
            seconds = time.perf_counter() - begun
            files = {path.name: [path.stat().st_size, hash_file(path)] for path in sorted(staging.iterdir())}
            entry = {"format": FORMAT, "parts": parts, "seconds": round(seconds, 3), "files": files}
            store_file(staging / ENTRY_NAME, json.dumps(entry, indent=1, sort_keys=True).encode())
            replace_folder(staging, self.folder / key)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self.evict(keep=key)
        return CacheEntry({}, seconds, built=True)

    def evict(self, keep: str) -> None:
        """Remove the least recently used entries over `max_bytes`, and old files of builders that died."""
        entries = []
        for path in self.folder.glob(f"*/{ENTRY_NAME}"):
            # Another process may remove the same entries.
            with contextlib.suppress(OSError):
                size = sum(file.stat().st_size for file in path.parent.iterdir())
                entries.append((path.stat().st_mtime, size, path.parent))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total > self.max_bytes and folder.name != keep:
                aside = self.folder / f".{folder.name}.{uuid.uuid4().hex}.old"
                with contextlib.suppress(OSError):
                    os.rename(folder, aside)
                    total -= size
                shutil.rmtree(aside, ignore_errors=True)
        for path in self.folder.glob(".*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def open_cache(settings: RuntimeConfig, *, by_default: bool = False) -> EngineCache | None:
    """Open the cache that the settings name, or, `by_default`, the user's if they name none; None: no cache."""
    folder = settings.cache
    if folder == AUTO:
        folder = str(find_cache_folder() / "engines") if by_default else None
    if folder is None:
        return None
    return EngineCache(
        folder,
        max_bytes=int(settings.cache_gib * GIB),
        stale_seconds=settings.cache_stale_seconds,
        wait_seconds=settings.cache_wait_seconds,
    )


def make_key(parts: Mapping[str, Any]) -> str:
    """Return the key of everything that determines an engine: 40 hexadecimal digits of a sha256."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def open_entry(folder: Path) -> CacheEntry:
    """Open and check every file of an entry.

    Raises: OSError if a file is missing; CacheEntryDamaged if one is not as it was written.
    """
    try:
        described = json.loads((folder / ENTRY_NAME).read_bytes())
        expected = {str(name): (int(size), str(digest)) for name, (size, digest) in described["files"].items()}
        key, seconds = make_key(described["parts"]), float(described["seconds"])
    except (ValueError, TypeError, KeyError) as error:
        raise CacheEntryDamaged(f"{folder}/{ENTRY_NAME}: {error}") from None
    if key != folder.name:
        raise CacheEntryDamaged(f"{folder}: contains the entry of another key")
    files: dict[str, CachedFile] = {}
    entry = CacheEntry(files, seconds, built=False)
    try:
        for name, (size, digest) in expected.items():
            files[name] = open_checked(folder / Path(name).name, size, digest)
    except BaseException:
        entry.close()
        raise
    return entry


def open_checked(path: Path, size: int, digest: str) -> CachedFile:
    # Not mapped into memory: on a network file system, the removal of the file elsewhere would kill this process.
    file = path.open("rb")
    try:
        if os.fstat(file.fileno()).st_size != size:
            raise CacheEntryDamaged(f"{path}: is not {size} bytes long")
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise CacheEntryDamaged(f"{path}: its sha256 differs")
    except BaseException:
        file.close()
        raise
    return CachedFile(file)


def warn(problem: str) -> None:
    warnings.warn(f"{problem}; continuing without it", RuntimeWarning, stacklevel=4)
