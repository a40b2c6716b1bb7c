"""The folder that prepare writes: whose it is, what of it is done, what is left over."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyarrow import fs
from pydantic import ValidationError

from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.plan import Chunk
from fusionray.data.prepare.worker import ShardReport
from fusionray.data.shards import MANIFEST_NAME, Manifest, read_manifest
from fusionray.errors import ShardCorrupt, ShardMismatch
from fusionray.storage import filesystem as storage

_PLAN_NAME = "prepare.json"
_PARTS = "parts"
# Settings that do not change what is written into the shards.
_WITHOUT_EFFECT = {"input", "output", "workers", "contact_sheet", "overwrite"}


def compute_fingerprint(config: PrepareConfig, signature: str) -> tuple[dict[str, Any], str]:
    """Give the settings and the input state that determine the shards, and one hash of them."""
    settings = config.model_dump(exclude=_WITHOUT_EFFECT) | {"input": hashlib.sha256(signature.encode()).hexdigest()}
    if config.task == "faces":
        # Shards that were made before there was another task are still what these settings make.
        del settings["task"]
    if config.detector != "default":
        settings["detector"] = storage.sha256_hex(Path(config.detector).read_bytes())
    return settings, storage.sha256_hex(json.dumps(settings, sort_keys=True).encode())


class Output:
    """The files of one set of shards, at a local path or a URI."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._filesystem, self._root = storage.open_filesystem(location)

    def claim(self, settings: dict[str, Any], fingerprint: str, *, overwrite: bool) -> None:
        """Make the folder this run's own.

        Raises:
            ShardMismatch: it holds shards of other input or settings, and they may not be replaced.
        """
        plan = self._read_plan()
        if plan is not None and plan.get("fingerprint") == fingerprint:
            return
        if plan is not None or self._size(MANIFEST_NAME) is not None:
            if not overwrite:
                raise ShardMismatch(
                    f"{self._location}: holds shards made from {_difference(plan or {}, settings)}; "
                    "choose another output, or set overwrite=true to replace them"
                )
            self._clear()
        self.write(_PLAN_NAME, json.dumps({"fingerprint": fingerprint, "settings": settings}, indent=1).encode())

    def finished_manifest(self, fingerprint: str) -> Manifest | None:
        """Give the manifest if the set is complete; None while something of it is missing."""
        if self._size(MANIFEST_NAME) is None:
            return None
        try:
            manifest = read_manifest(self._location)
        except ShardCorrupt:
            return None
        sizes = self._sizes()
        complete = all(sizes.get(shard.file) == shard.bytes for shard in manifest.shards)
        return manifest if complete and manifest.fingerprint == fingerprint else None

    def done_files(self, chunks: Sequence[Chunk], fingerprint: str) -> set[str]:
        """List the shard files of those chunks that need no more work."""
        sizes = self._sizes()
        done = set()
        for chunk in chunks:
            if chunk.report_file not in sizes:
                continue
            try:
                report = self.read_report(chunk)
            except ValidationError:
                continue
            whole = report.shard is None or sizes.get(chunk.file) == report.shard.bytes
            if report.fingerprint == fingerprint and whole:
                done.add(chunk.file)
        return done

    def read_report(self, chunk: Chunk) -> ShardReport:
        """Read how the work on a chunk went."""
        return ShardReport.model_validate_json(storage.read_bytes(storage.join(self._location, chunk.report_file)))

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the set, atomically."""
        storage.write_atomic(storage.join(self._location, name), data)

    def remove_leftovers(self) -> None:
        """Remove half-written files that a killed run left behind."""
        for name in self._sizes():
            if name.endswith(".part"):
                self._filesystem.delete_file(f"{self._root}/{name}")

    def _clear(self) -> None:
        """Remove the files of an earlier set, and no others; the manifest first, so that nobody reads a half set."""
        own = ("manifest.json", "dropped.jsonl", "summary.json", "contact_sheet.png", _PLAN_NAME)
        sizes = self._sizes()
        shards = [name for name in sizes if name.startswith(("shard-", f"{_PARTS}/shard-"))]
        for name in [*(name for name in own if name in sizes), *shards]:
            self._filesystem.delete_file(f"{self._root}/{name}")

    def _read_plan(self) -> dict[str, Any] | None:
        if self._size(_PLAN_NAME) is None:
            return None
        try:
            plan = json.loads(storage.read_bytes(storage.join(self._location, _PLAN_NAME)))
        except ValueError:
            return {}
        return plan if isinstance(plan, dict) else {}

    def _size(self, name: str) -> int | None:
        info = self._filesystem.get_file_info(f"{self._root}/{name}")
        return info.size if info.type == fs.FileType.File else None

    def _sizes(self) -> dict[str, int]:
        """List the files of the set and their sizes, by name relative to the folder."""
        found: dict[str, int] = {}
        for folder, prefix in ((self._root, ""), (f"{self._root}/{_PARTS}", f"{_PARTS}/")):
            for info in self._filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
                if info.type == fs.FileType.File:
                    found[f"{prefix}{info.base_name}"] = info.size or 0
        return found


def _difference(plan: dict[str, Any], now: dict[str, Any]) -> str:
    before = plan.get("settings", {})
    changed = [key for key in now if before.get(key) != now[key]]
    if not before:
        return "unknown input or settings"
    words = [
        "other input (its names, sizes or times changed)"
        if key == "input"
        else f"{key}={before.get(key)}, not {now[key]}"
        for key in changed
    ]
    return "; ".join(words) or "an older version of these settings"
