"""The cursors of lists that are given page by page."""

from __future__ import annotations

import base64
import json
from typing import Any

from fastapi.exceptions import RequestValidationError


def write_cursor(*position: Any) -> str:
    """Write the position behind which the next page begins."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, kinds: tuple[type, ...]) -> tuple[Any, ...] | None:
    """Read what `write_cursor` wrote, values of these kinds; None without a cursor.

    Raises: RequestValidationError.
    """
    if cursor is None:
        return None
    try:
        position = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
        if isinstance(position, list) and [type(value) for value in position] == list(kinds):
            return tuple(position)
    except (ValueError, RecursionError):
        pass
    msg = "is none that this service has given; take it from `next`"
    raise RequestValidationError([{"loc": ("query", "cursor"), "msg": msg, "type": "value_error"}])
