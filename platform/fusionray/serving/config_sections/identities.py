"""Settings of stored source faces."""

from __future__ import annotations

from pydantic import Field

from fusionray.config import Section, in_unit


class IdentityConfig(Section):
    """Where source faces are stored, for how long, and how many."""

    folder: str = Field(
        default="runs/identities", description="Folder of the stored faces; every replica must reach it."
    )
    ttl_seconds: float = Field(default=3600.0, gt=0, description="Time after which a stored face is deleted.")
    max_identities: int = Field(
        default=10_000, ge=1, description="Largest number of stored faces; further ones are refused."
    )
    max_bytes: int = Field(default=4 * 2**30, ge=1, description="Largest size of the store; further faces are refused.")
    memory_entries: int = Field(
        default=256,
        ge=0,
        description="Decrypted faces that a replica keeps in memory.",
        json_schema_extra=in_unit("faces"),
    )
