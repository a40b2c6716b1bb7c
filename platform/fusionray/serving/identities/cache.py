"""The faces that a replica holds decrypted: few, not for long, and only while their files are seen to be there."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from fusionray.serving.identities.encryption import FloatArray, StoredFace

# A deletion by another replica is noticed after at most this time; what is decrypted is forgotten after the second.
CHECK_SECONDS = 0.5
MEMORY_SECONDS = 60.0


@dataclass
class Entry:
    """A face, when it was read, and when its file was last seen."""

    face: StoredFace
    read_at: float
    seen_at: float


class FaceCache:
    """Hold the faces that were used last. `is_there(name)` looks for the file of one."""

    def __init__(self, max_entries: int, is_there: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self.max_entries = max_entries
        self.is_there = is_there
        self.clock = clock
        self.lock = threading.Lock()
        self.entries: OrderedDict[str, Entry] = OrderedDict()

    def find(self, name: str) -> StoredFace | None:
        """Give a face whose file was seen just now."""
        now = self.clock()
        with self.lock:
            entry = self.entries.get(name)
            if entry is None:
                return None
            self.entries.move_to_end(name)
        if now - entry.seen_at < CHECK_SECONDS:
            return entry.face
        if now - entry.read_at < MEMORY_SECONDS and self.is_there(name):
            entry.seen_at = now
            return entry.face
        self.forget(name)
        return None

    def keep(self, name: str, face: StoredFace, read_at: float) -> None:
        """Hold a face that was read at a time of the clock, in place of the one that was unused for longest."""
        with self.lock:
            self.entries[name] = Entry(face, read_at, read_at)
            while len(self.entries) > self.max_entries:
                self.entries.popitem(last=False)

    def forget(self, name: str) -> None:
        """Let go of a face."""
        with self.lock:
            self.entries.pop(name, None)

    def forget_all(self, is_over: Callable[[StoredFace], bool]) -> None:
        """Let go of the faces that are over."""
        with self.lock:
            for name in [name for name, entry in self.entries.items() if is_over(entry.face)]:
                del self.entries[name]

    def add_reading(self, name: str, encoder_hash: str, reading: FloatArray) -> None:
        """Add to a face what a model read from it."""
        with self.lock:
            if entry := self.entries.get(name):
                entry.face = replace(entry.face, readings={**entry.face.readings, encoder_hash: reading})
