"""Remember where the faces of recent pictures are: people try many sources on one target."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cachetools import TTLCache

from fusionray.faces.face import Face
from fusionray.runtime.face_preprocessor import FaceSelection

MAX_PICTURES = 1000


class FoundFaces:
    """Boxes, points and outlines by the hash of the picture's bytes; no pixels and no embeddings.

    They are kept for `seconds`; 0 keeps nothing. Calls from several threads are allowed.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.entries: TTLCache[tuple[str, FaceSelection], list[Face]] = TTLCache(MAX_PICTURES, seconds, clock)
        self.lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether anything is kept; otherwise nobody needs to hash a picture."""
        return bool(self.entries.ttl > 0)

    def get(self, sha256: str, selection: FaceSelection) -> list[Face] | None:
        """Return the faces that a search found in a picture; None if it was not searched lately."""
        with self.lock:
            return self.entries.get((sha256, selection))

    def keep(self, sha256: str, selection: FaceSelection, faces: list[Face]) -> None:
        """Keep the faces that a search found in a picture."""
        with self.lock:
            self.entries[sha256, selection] = faces
