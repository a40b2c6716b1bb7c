"""The line of the audit log about a film."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fusionray.bundle.description import FACE_FUSION
from fusionray.safety.audit import AuditEntry, TaskAuditEntry
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
        """Build the entry with the hashes of the inputs and of the result; a film that was refused has none."""
        if not isinstance(reply, MadeFilm):
            return AuditEntry(**common)
        common = {**common, "bundle": reply.bundle, "output_sha256": reply.output_sha256}
        if reply.task != FACE_FUSION:
            return TaskAuditEntry(**common, task=reply.task, inputs_sha256=reply.inputs_sha256)
        inputs: dict[str, Any] = {f"{name}_sha256": digest for name, digest in reply.inputs_sha256.items()}
        return AuditEntry(**common, **inputs, num_faces=reply.num_faces)
