"""The decrypted faces in a replica's memory: a limited number, for a short time, while their files exist."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from fusionray.serving.identities.encryption import FloatArray, StoredFace

# How soon a replica notices that another one removed a face, and how long it keeps a decrypted face.
CHECK_SECONDS = 0.5
MEMORY_SECONDS = 60.0


@dataclass
class CachedFace:
    """A face, when it was read, and when its file was last seen, by the clock of the cache."""

    face: StoredFace
    read_at: float
    seen_at: float


class FaceCache:
    """Hold the most recently used faces. `is_there(name)` checks that the file of a face exists."""

    def __init__(self, max_entries: int, is_there: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self.max_entries = max_entries
        self.is_there = is_there
        self.clock = clock
        self.lock = threading.Lock()
        self.entries: OrderedDict[str, CachedFace] = OrderedDict()

    def find(self, name: str) -> StoredFace | None:
        """Return a face if it is cached and its file still exists."""
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
        """Hold a face that was read at a time of the clock; drop the least recently used one if there is no room."""
        with self.lock:
            self.entries[name] = CachedFace(face, read_at, read_at)
            while len(self.entries) > self.max_entries:
                self.entries.popitem(last=False)

    def forget(self, name: str) -> None:
        """Drop a face."""
        with self.lock:
            self.entries.pop(name, None)

    def sweep(self) -> None:
        """Drop the faces that were read too long ago, or whose file is gone: removed or expired."""
        now = self.clock()
        with self.lock:
            ages = {name: now - entry.read_at for name, entry in self.entries.items()}
        for name, age in ages.items():
            if age >= MEMORY_SECONDS or not self.is_there(name):
                self.forget(name)

    def add_reading(self, name: str, encoder_hash: str, reading: FloatArray) -> None:
        """Add a model's reading to a face, if the face is cached."""
        with self.lock:
            if entry := self.entries.get(name):
                entry.face = replace(entry.face, readings={**entry.face.readings, encoder_hash: reading})
