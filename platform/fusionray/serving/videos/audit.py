"""The line of the audit log about a film."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fusionray.safety.audit import AuditEntry
from fusionray.serving.auth.callers import Caller
from fusionray.serving.jobs.films import MadeFilm


@dataclass(frozen=True)
class FilmRequest:
    """The end of a job with a film, whose work took from `created_at` on (seconds since 1970)."""

    caller: Caller
    created_at: float

    @property
    def asked_at(self) -> float:
        """The time of `time.perf_counter()` at which the job was created; the log counts from it."""
        return time.perf_counter() - (time.time() - self.created_at)

    def write_entry(self, reply: Any, common: dict[str, Any]) -> AuditEntry:
        """Build the entry with the hashes of source, film and result; a film that was refused has none."""
        if not isinstance(reply, MadeFilm):
            return AuditEntry(**common)
        return AuditEntry(
            **{
                **common,
                "bundle": reply.bundle,
                "source_sha256": reply.source_sha256,
                "target_sha256": reply.target_sha256,
                "output_sha256": reply.output_sha256,
                "num_faces": reply.num_faces,
            }
        )
