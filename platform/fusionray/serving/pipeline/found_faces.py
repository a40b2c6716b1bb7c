"""Remember where the faces of recent pictures are: people try many sources on one target."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cachetools import TTLCache

from fusionray.faces.face import Face
from fusionray.runtime.face_preprocessor import FaceSelection
from fusionray.safety.audit import hash_bytes

MAX_PICTURES = 1000


class FoundFaces:
    """Boxes, points and outlines by the hash of the picture's bytes; no pixels and no embeddings.

    They are kept for `seconds`; 0 keeps nothing. Calls from several threads are allowed.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.entries: TTLCache[tuple[str, FaceSelection], list[Face]] = TTLCache(MAX_PICTURES, seconds, clock)
        self.lock = threading.Lock()

    def find(self, picture: bytes, selection: FaceSelection, search: Callable[[], list[Face]]) -> list[Face]:
        """Return the faces of an encoded picture that `search` found lately, or finds now; what it raises is raised."""
        if self.entries.ttl <= 0:
            return search()
        key = hash_bytes(picture), selection
        with self.lock:
            faces: list[Face] | None = self.entries.get(key)
        if faces is None:
            faces = search()
            with self.lock:
                self.entries[key] = faces
        return faces
