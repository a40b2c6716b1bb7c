"""The caller of a request."""

from __future__ import annotations

from dataclasses import dataclass

from fusionray.safety.audit import ANONYMOUS
from fusionray.serving.auth.key_file import ApiKey


@dataclass(frozen=True)
class Caller:
    """The owner of an API key, or an anonymous client if no key is required; `request` is the request's ID in logs."""

    name: str = ANONYMOUS
    key: ApiKey | None = None
    request: str = ""
