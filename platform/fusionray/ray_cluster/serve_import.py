"""Import Ray Serve without pandas."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def import_serve() -> None:
    """Import Ray Serve, and hide pandas from it meanwhile.

    Ray Serve imports pandas, if it is there, only to write data frames as JSON. The service answers with none, and
    pandas takes 67 MB and 0.3 s of CPU in each of the five processes of a start.
    """
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    is_hidden = "pandas" not in modules
    if is_hidden:
        # An import of it then fails as if it were not installed.
        modules["pandas"] = None
    try:
        import_module("ray.serve")
    finally:
        if is_hidden:
            del modules["pandas"]
