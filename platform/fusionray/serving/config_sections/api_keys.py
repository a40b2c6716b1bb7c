"""Settings of API keys."""

from __future__ import annotations

from pydantic import Field

from fusionray.config import Section


class ApiKeyConfig(Section):
    """Where the API keys of the service are stored."""

    file: str | None = Field(
        default=None, description="YAML file of API keys that `fusionray keys add` writes; null: no keys."
    )
    usage_file: str | None = Field(
        default=None, description="File in which the daily image counts survive a restart; null: a restart resets them."
    )
