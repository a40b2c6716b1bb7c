"""The `Accept` header of a request (RFC 9110, section 12.5.1)."""

from __future__ import annotations

import math
from typing import get_args

from fusionray.faces.image_files.headers.image_header import PictureFormat

PICTURE_TYPES: dict[str, PictureFormat] = {f"image/{name}": name for name in get_args(PictureFormat)}
WILDCARDS = frozenset({"image/*", "*/*"})


def find_accepted_format(header: str | None) -> PictureFormat | None:
    """Return the picture format that a client prefers; None if it has no preference.

    Of several that it likes equally, the first one counts. A client that takes any format as gladly, or none of ours
    (such as one that asks for JSON, and gets it for a job or a problem), has no preference.
    """
    best: PictureFormat | None = None
    best_weight = any_weight = 0.0
    for item in (header or "").split(","):
        media_type, *parameters = (part.strip().lower() for part in item.split(";"))
        weight = read_weight(parameters)
        if media_type in WILDCARDS:
            any_weight = max(any_weight, weight)
        elif media_type in PICTURE_TYPES and weight > best_weight:
            best, best_weight = PICTURE_TYPES[media_type], weight
    return best if best_weight > any_weight else None


def read_weight(parameters: list[str]) -> float:
    """Return the weight (`q`) among the parameters of a media type, 0 to 1; 0 if it is not a number."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return min(max(weight, 0.0), 1.0) if math.isfinite(weight) else 0.0
    return 1.0
