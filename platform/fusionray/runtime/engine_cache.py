"""Built engines in a folder that all replicas share: one process builds, the others wait and load.

    <key>/entry.json   what the key stands for, and size and sha256 of each file
    <key>/...          what was built
    <key>.lease/       who builds it at the moment (storage/lease.py)

Entries appear whole or not at all and never change. What is loaded has been hashed through the same open file.
The hashes detect damage, not attacks: whoever can write to the folder decides what runs here.
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
from fusionray.runtime.config import RuntimeConfig
from fusionray.storage.lease import Lease

ENTRY_NAME = "entry.json"
FORMAT = 1
POLL_SECONDS = 0.05
GIB = 2**30
LEFTOVER_SECONDS = 24 * 3600


class EntryDamaged(Exception):
    """An entry does not hold what it promises; it is built again."""


@dataclass(frozen=True)
class CachedFile:
    """An open file whose content has been checked: a file of its name that takes its place is not seen."""

    file: BinaryIO

    @property
    def path(self) -> str:
        """Locate the open file."""
        return f"/proc/self/fd/{self.file.fileno()}"

    def read(self) -> bytes:
        """Read the whole file."""
        self.file.seek(0)
        return self.file.read()


class Entry:
    """What was built for a key, checked and open. `built` tells whether this process built it, in `seconds`."""

    def __init__(self, files: Mapping[str, CachedFile], seconds: float, *, built: bool) -> None:
        self.files = files
        self.seconds = seconds
        self.built = built

    def copy_to(self, folder: Path) -> None:
        """Write the checked content of every file into a folder of one's own."""
        for name, file in self.files.items():
            (folder / name).write_bytes(file.read())

    def close(self) -> None:
        """Close the files."""
        for checked in self.files.values():
            checked.file.close()

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class EngineCache:
    """A folder of built engines."""

    def __init__(self, folder: str | Path, *, max_bytes: int, stale_seconds: float, wait_seconds: float) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.max_bytes = max_bytes
        self.stale_seconds = stale_seconds
        self.wait_seconds = wait_seconds

    def obtain(self, parts: Mapping[str, Any], build: Callable[[Path], None]) -> Entry | None:
        """Load the entry of a key, waiting for whoever builds it, or build it: `build` fills the folder it is given.

        None, with one warning, where the folder cannot be written or another builds for too long.
        """
        key = make_key(parts)
        found = self.find(key)
        if found is not None:
            return found
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lease = self.make_lease(key)
            found = self.wait(key, lease)
            if found is None and lease.number:
                with lease.held():
                    # Whoever held the lease until now may just have finished.
                    found = self.find(key) or self.make(key, parts, build)
        except OSError as error:
            warn(f"{self.folder}: cannot be used as engine cache ({error.strerror or error})")
            return None
        if found is None:
            warn(f"{self.folder}: another process has been building {key} for {self.wait_seconds:g} s")
        return found

    def make_lease(self, key: str) -> Lease:
        """Prepare to ask for the right to build an entry. Others who share the folder may read who has it."""
        return Lease(
            self.folder / f"{key}.lease",
            timeout_seconds=self.stale_seconds,
            # Building may hold back every thread of a process for minutes, and costs that much again if done twice.
            trust_living=True,
            owns_folder=True,
            file_mode=0o644,
        )

    def wait(self, key: str, lease: Lease) -> Entry | None:
        """Wait until the entry is there or the lease is ours; neither if that takes too long."""
        deadline = time.monotonic() + self.wait_seconds
        rejected = self.identify(key)
        while not lease.try_take():
            if self.identify(key) != rejected and (found := self.find(key)) is not None:
                return found
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)
        return None

    def identify(self, key: str) -> int | None:
        """Tell one file that describes the entry from another one of its name; None if there is none."""
        try:
            return (self.folder / key / ENTRY_NAME).stat().st_ino
        except OSError:
            return None

    def find(self, key: str) -> Entry | None:
        """Open the entry of a key if it is there and sound."""
        folder = self.folder / key
        try:
            found = open_entry(folder)
        except (OSError, EntryDamaged):
            return None
        # The least recently used entries are removed first. Nothing is removed from a read-only folder.
        with contextlib.suppress(OSError):
            os.utime(folder / ENTRY_NAME)
        return found

    def make(self, key: str, parts: Mapping[str, Any], build: Callable[[Path], None]) -> Entry | None:
        """Build beside the entry's place and rename into it. Only the holder of the key's lease may."""
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
        self.trim(keep=key)
        return Entry({}, seconds, built=True)

    def trim(self, keep: str) -> None:
        """Remove the entries that were not used longest until the rest fits, and what dead builders left behind."""
        entries = []
        for path in self.folder.glob(f"*/{ENTRY_NAME}"):
            # Another process may remove the same ones.
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


def open_cache(settings: RuntimeConfig) -> EngineCache | None:
    """Open the cache of the settings, if they name one."""
    if settings.cache is None:
        return None
    return EngineCache(
        settings.cache,
        max_bytes=int(settings.cache_gib * GIB),
        stale_seconds=settings.cache_stale_seconds,
        wait_seconds=settings.cache_wait_seconds,
    )


def make_key(parts: Mapping[str, Any]) -> str:
    """Turn what decides about an engine into a name: 40 digits of a sha256."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def open_entry(folder: Path) -> Entry:
    """Open and check every file of an entry.

    Raises: OSError if a file is missing; EntryDamaged if one is not what was written.
    """
    try:
        entry = json.loads((folder / ENTRY_NAME).read_bytes())
        promised = {str(name): (int(size), str(digest)) for name, (size, digest) in entry["files"].items()}
        key, seconds = make_key(entry["parts"]), float(entry["seconds"])
    except (ValueError, TypeError, KeyError) as error:
        raise EntryDamaged(f"{folder}/{ENTRY_NAME}: {error}") from None
    if key != folder.name:
        raise EntryDamaged(f"{folder}: holds an entry of another key")
    files: dict[str, CachedFile] = {}
    entry = Entry(files, seconds, built=False)
    try:
        for name, (size, digest) in promised.items():
            files[name] = open_checked(folder / Path(name).name, size, digest)
    except BaseException:
        entry.close()
        raise
    return entry


def open_checked(path: Path, size: int, digest: str) -> CachedFile:
    # Not mapped into memory: where the file lies on a network, its removal elsewhere would kill this process.
    file = path.open("rb")
    try:
        if os.fstat(file.fileno()).st_size != size:
            raise EntryDamaged(f"{path}: is not {size} bytes long")
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise EntryDamaged(f"{path}: its sha256 is another")
    except BaseException:
        file.close()
        raise
    return CachedFile(file)


def warn(what: str) -> None:
    warnings.warn(f"{what}; continuing without it", RuntimeWarning, stacklevel=4)
