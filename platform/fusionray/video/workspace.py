"""The folder in which a video is made: what is finished stays there when a run is killed, and the next one goes on.

    .fused.mp4.work/manifest.json       what is made, and of what: the settings and the segments
    .fused.mp4.work/scan-00003.npz      what the first pass over a segment found
    .fused.mp4.work/segment-00003.mp4   the frames of a segment, without sound

Each file has its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from fusionray.errors import VideoInUse
from fusionray.storage.atomic_files import replace_file, sync_folder
from fusionray.video.segments import Segment

FORMAT = "fusionray-video-2"
LOCK = "lock"


@dataclass(frozen=True)
class MadeOf:
    """What files depend on: `scans` on the video and a little else, `films` on all. Only JSON."""

    scans: Mapping[str, Any]
    films: Mapping[str, Any]


class Workspace:
    """The folder of a video that is made. Files of an earlier run stay if they were made of the same."""

    def __init__(self, output: Path, made_of: MadeOf, plan: Callable[[], list[Segment]]) -> None:
        self.output = output
        self.folder = folder_of(output)
        self.manifest = self.folder / "manifest.json"
        now = json.loads(json.dumps(asdict(made_of)))
        before = self.read_manifest()
        if before["made_of"] == now:
            self.segments = [decode_segment(each) for each in before["segments"]]
            return
        same_scans = before["made_of"].get("scans") == now["scans"]
        for file in self.folder.iterdir():
            if file.name != LOCK and not (same_scans and file.name.startswith("scan-")):
                file.unlink()
        self.segments = [decode_segment(each) for each in before["segments"]] if same_scans else plan()
        manifest = {"format": FORMAT, "made_of": now, "segments": [asdict(each) for each in self.segments]}
        replace_file(self.manifest, json.dumps(manifest, indent=1, default=str).encode())

    def read_manifest(self) -> dict[str, Any]:
        """Read the manifest of an earlier run; it was made of nothing if there is none that can be used."""
        with contextlib.suppress(OSError, ValueError):
            manifest: dict[str, Any] = json.loads(self.manifest.read_bytes())
            if manifest.get("format") == FORMAT:
                return manifest
        return {"made_of": {}, "segments": []}

    def scan_of(self, segment: Segment) -> Path:
        """Return the file of what the first pass over a segment found."""
        return self.folder / f"scan-{segment.number:05d}.npz"

    def film_of(self, segment: Segment) -> Path:
        """Return the file of the frames of a segment."""
        return self.folder / f"segment-{segment.number:05d}{self.output.suffix}"

    def write_scan(self, segment: Segment, scan: bytes) -> None:
        """Keep what the first pass over a segment found."""
        replace_file(self.scan_of(segment), scan)

    def remove(self) -> None:
        """Remove the folder: the video is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)


def folder_of(output: Path) -> Path:
    """Return the folder in which a video is made."""
    return output.with_name(f".{output.name}.work")


@contextlib.contextmanager
def claim(output: Path) -> Iterator[None]:
    """Make the folder of a video, and keep other processes of this machine out of it.

    The folder that it lies in must be there: one that somebody has removed meanwhile is not made anew.

    Raises: VideoInUse if another one makes the same video; FileNotFoundError.
    """
    folder_of(output).mkdir(exist_ok=True)
    sync_folder(output.parent)
    descriptor = os.open(folder_of(output) / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VideoInUse(f"{output}: another process makes it; wait for its end, or choose another name") from None
        yield
    finally:
        os.close(descriptor)


def decode_segment(values: Mapping[str, Any]) -> Segment:
    """Read a segment of the manifest."""
    bounds = [None if values[name] is None else Fraction(values[name]) for name in ("start", "end")]
    return Segment(values["number"], bounds[0], bounds[1], values["num_frames"])
