"""The JSON of a problem. This module imports only the standard library, because the HAProxy script uses it."""

from __future__ import annotations

from typing import Any


def problem_document(status: int, reason: str, title: str, detail: str) -> dict[str, Any]:
    """Build a problem document; `reason` is a short stable key.

    Source: RFC 9457, section 3.
    """
    return {
        "type": f"urn:fusionray:problem:{reason}",
        "title": title,
        "status": status,
        "detail": detail,
        "reason": reason,
    }
