"""How models are run: the settings that the command line, serving and evaluation share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fusionray.config import Section


class RuntimeSettings(Section):
    """On what a model runs, and with how much of it."""

    providers: tuple[str, ...] | Literal["auto"] = Field(
        default="auto", description="Execution providers of ONNX Runtime, the first preferred."
    )
    allow_fallback: bool = Field(default=False, description="Go on with a warning if a provider does not start.")
    threads: int | None = Field(default=None, ge=1, description="CPU threads of a model; all CPUs if not given.")

    @field_validator("providers")
    @classmethod
    def check_providers(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if not value:
            raise ValueError("name at least one provider, or write auto")
        return value
