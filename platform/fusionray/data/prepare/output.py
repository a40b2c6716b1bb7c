"""The output folder of prepare: the settings it was made with, its finished shards, its leftover files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyarrow import fs
from pydantic import ValidationError

from fusionray.bundle.bundle import read_bundle
from fusionray.bundle.description import PARSER_NAME
from fusionray.data.person_labels import LABELS_NAME
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.plan import PlannedShard
from fusionray.data.prepare.worker import ShardReport
from fusionray.data.shards import MANIFEST_NAME, Manifest, read_manifest
from fusionray.errors import ShardCorrupt, ShardMismatch
from fusionray.storage import filesystem as storage

_SETTINGS_NAME = "prepare.json"
_PARTS = "parts"
# Settings that do not change the content of the shards.
_WITHOUT_EFFECT = {"input", "output", "workers", "contact_sheet", "overwrite"}


def compute_fingerprint(config: PrepareConfig, signature: str) -> tuple[dict[str, Any], str]:
    """Return the settings and the state of the input that determine the shards, and a hash of them."""
    settings = config.model_dump(exclude=_WITHOUT_EFFECT) | {"input": hashlib.sha256(signature.encode()).hexdigest()}
    if config.task == "faces":
        # The fingerprint of faces is older than `task`: existing shards must keep theirs.
        del settings["task"]
    if config.parser is None or config.task != "faces":
        # So is it than `parser`, which has no effect on pictures.
        del settings["parser"]
    else:
        settings["parser"] = read_bundle(config.parser).description.files[PARSER_NAME]
    if config.detector != "default":
        settings["detector"] = storage.sha256_hex(Path(config.detector).read_bytes())
    return settings, storage.sha256_hex(json.dumps(settings, sort_keys=True).encode())


class OutputFolder:
    """The files of one set of shards, at a local path or a URI."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._filesystem, self._root = storage.open_filesystem(location)

    def record_settings(self, settings: dict[str, Any], fingerprint: str, *, overwrite: bool) -> None:
        """Write the settings of this run to the folder; with `overwrite`, remove shards that were made with others.

        Raises:
            ShardMismatch: the folder holds shards of other input or settings, and `overwrite` is false.
        """
        stored = self._read_settings()
        if stored is not None and stored.get("fingerprint") == fingerprint:
            return
        if stored is not None or self._size(MANIFEST_NAME) is not None:
            if not overwrite:
                raise ShardMismatch(
                    f"{self._location}: holds shards made from {_describe_changes(stored or {}, settings)}; "
                    "choose another output, or set overwrite=true to replace them"
                )
            self._clear()
        self.write(_SETTINGS_NAME, json.dumps({"fingerprint": fingerprint, "settings": settings}, indent=1).encode())

    def complete_manifest(self, fingerprint: str) -> Manifest | None:
        """Return the manifest if all its shards are present; else None."""
        if self._size(MANIFEST_NAME) is None:
            return None
        try:
            manifest = read_manifest(self._location)
        except ShardCorrupt:
            return None
        sizes = self._sizes()
        complete = all(sizes.get(shard.file) == shard.bytes for shard in manifest.shards)
        complete &= manifest.task == "pictures" or LABELS_NAME in sizes
        return manifest if complete and manifest.fingerprint == fingerprint else None

    def list_finished(self, planned_shards: Sequence[PlannedShard], fingerprint: str) -> set[str]:
        """Return the file names of planned shards that are finished."""
        sizes = self._sizes()
        done = set()
        for planned in planned_shards:
            if planned.report_file not in sizes:
                continue
            try:
                report = self.read_report(planned)
            except ValidationError:
                continue
            whole = report.shard is None or sizes.get(planned.file) == report.shard.bytes
            if report.fingerprint == fingerprint and whole:
                done.add(planned.file)
        return done

    def read_report(self, planned: PlannedShard) -> ShardReport:
        """Read the report of a planned shard."""
        return ShardReport.model_validate_json(storage.read_bytes(storage.join(self._location, planned.report_file)))

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the set, atomically."""
        storage.write_atomic(storage.join(self._location, name), data)

    def remove_partial_files(self) -> None:
        """Remove partial files of a run that was killed."""
        for name in self._sizes():
            if name.endswith(".part"):
                self._filesystem.delete_file(f"{self._root}/{name}")

    def _clear(self) -> None:
        """Remove the files of an earlier set, and no others; the manifest first, since it marks a complete set."""
        own = ("manifest.json", LABELS_NAME, "dropped.jsonl", "summary.json", "contact_sheet.png", _SETTINGS_NAME)
        sizes = self._sizes()
        shards = [name for name in sizes if name.startswith(("shard-", f"{_PARTS}/shard-"))]
        for name in [*(name for name in own if name in sizes), *shards]:
            self._filesystem.delete_file(f"{self._root}/{name}")

    def _read_settings(self) -> dict[str, Any] | None:
        if self._size(_SETTINGS_NAME) is None:
            return None
        try:
            stored = json.loads(storage.read_bytes(storage.join(self._location, _SETTINGS_NAME)))
        except ValueError:
            return {}
        return stored if isinstance(stored, dict) else {}

    def _size(self, name: str) -> int | None:
        info = self._filesystem.get_file_info(f"{self._root}/{name}")
        return info.size if info.type == fs.FileType.File else None

    def _sizes(self) -> dict[str, int]:
        """List the sizes of the files of the set, by name relative to the folder."""
        found: dict[str, int] = {}
        for folder, prefix in ((self._root, ""), (f"{self._root}/{_PARTS}", f"{_PARTS}/")):
            for info in self._filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
                if info.type == fs.FileType.File:
                    found[f"{prefix}{info.base_name}"] = info.size or 0
        return found


def _describe_changes(stored: dict[str, Any], now: dict[str, Any]) -> str:
    before = stored.get("settings", {})
    changed = [key for key in {**now, **before} if before.get(key) != now.get(key)]
    if not before:
        return "unknown input or settings"
    words = [
        "other input (its names, sizes or times changed)"
        if key == "input"
        else f"{key}={before.get(key)}, not {now.get(key)}"
        for key in changed
    ]
    return "; ".join(words) or "an older version of these settings"
