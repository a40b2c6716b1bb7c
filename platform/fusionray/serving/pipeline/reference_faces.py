"""Read a reference face once for all requests that use it at the same time, such as the targets of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from fusionray.errors import ImageRejected
from fusionray.runtime.pixels import FloatArray


@dataclass(eq=False)
class SharedFace:
    """The identity of a reference face, or why it has none; `num_users` requests may ask for it."""

    num_users: int = 0
    lock: Lock = field(default_factory=Lock)
    identity: FloatArray | None = None
    fault: ImageRejected | None = None

    def get(self, read: Callable[[], FloatArray]) -> FloatArray:
        """Return the identity: the first caller reads it, and the others wait.

        Raises: ImageRejected.
        """
        with self.lock:
            if self.fault is not None:
                raise self.fault
            if self.identity is None:
                try:
                    self.identity = read()
                except ImageRejected as error:
                    self.fault = error
                    raise
            return self.identity


class ReferenceFaces:
    """The reference faces of the running requests, by picture and bundle; nothing is kept after the last of them."""

    def __init__(self) -> None:
        self.faces: dict[tuple[bytes, str], SharedFace] = {}

    @contextmanager
    def hold(self, picture: bytes, bundle: str) -> Iterator[None]:
        """Keep a reference face for the length of a request. All calls come from one event loop."""
        key = picture, bundle
        face = self.faces.setdefault(key, SharedFace())
        face.num_users += 1
        try:
            yield
        finally:
            face.num_users -= 1
            if face.num_users == 0:
                del self.faces[key]

    def get(self, picture: bytes, bundle: str, read: Callable[[], FloatArray]) -> FloatArray:
        """Return the identity of a face that the caller holds. Calls from several threads are allowed.

        Raises: ImageRejected if `read` raises it, now or for another request.
        """
        return self.faces[picture, bundle].get(read)
